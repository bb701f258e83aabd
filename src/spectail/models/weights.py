"""Weights from a file into a backbone: matched by name and shape, with a report of what was and was not loaded."""

from __future__ import annotations

import hashlib
import mmap
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .._utils.digests import verify
from .._utils.errors import is_lack_of_memory
from .._utils.files import array_digest

WRAPPERS = ("state_dict", "model", "model_state_dict", "model_ema", "state_dict_ema", "net", "network")
PREFIXES = ("module.", "_orig_mod.", "model.", "backbone.", "encoder.")


@dataclass(frozen=True)
class LoadReport:
    """What happened to the tensors of a checkpoint."""

    source: str
    loaded: tuple[str, ...]
    missing: tuple[str, ...]
    """In the model and not in the file: they keep their random start."""
    unexpected: tuple[str, ...]
    """In the file and not in the model, such as its old head."""
    reshaped: tuple[str, ...]
    """In both, with another shape: not loaded."""

    def __str__(self) -> str:
        text = f"{self.source}: {len(self.loaded)} tensors loaded"
        for what, names in (("new", self.missing), ("left out", self.unexpected), ("other shape", self.reshaped)):
            if names:
                text += f"; {what}: {', '.join(names[:4])}{f' and {len(names) - 4} more' if len(names) > 4 else ''}"
        return text


def load_weights(backbone: nn.Module, path: Path) -> LoadReport:
    """Load what fits. A file that fits less than half of the backbone is an error, not a random start in disguise."""
    state = _cleaned(read_weights(path), backbone)
    own = backbone.state_dict()
    reshaped = tuple(name for name, value in state.items() if name in own and own[name].shape != value.shape)
    fitting = {name: value for name, value in state.items() if name in own and name not in reshaped}
    _require_half(backbone, state, fitting, path)
    backbone.load_state_dict(fitting, strict=False)
    counters = {name for name in own if name.endswith("num_batches_tracked")}  # not every file keeps them
    return LoadReport(
        source=path.name,
        loaded=tuple(fitting),
        missing=tuple(name for name in own if name not in fitting and name not in reshaped and name not in counters),
        unexpected=tuple(name for name in state if name not in own),
        reshaped=reshaped,
    )


def _require_half(backbone: nn.Module, state: dict[str, Tensor], fitting: dict[str, Tensor], path: Path) -> None:
    """Half of the numbers that training moves. Of a whole classifier its backbone counts: heads may differ."""
    sizes = {name: value.numel() for name, value in backbone.named_parameters()}
    sizes = {name: size for name, size in sizes.items() if name.startswith("backbone.")} or sizes
    loaded = sum(size for name, size in sizes.items() if name in fitting)
    if 2 * loaded >= sum(sizes.values()) and loaded:
        return
    what = f"only {loaded:,} of {sum(sizes.values()):,} parameters that fit" if loaded else "no tensor that fits"
    without = [name for name in sizes if name not in fitting]
    found = f"it holds {', '.join(list(state)[:3])}, ..., the model {', '.join(without[:3])}, ..."
    other = next((name for name in without if name in state), None)
    if other is not None:  # the names agree, so only the shapes tell
        found += (
            f" ({other} is {_shape(state[other])} in the file, {_shape(backbone.state_dict()[other])} in the model)"
        )
    raise ValueError(f"{path} has {what} the model: {found}. Is it a checkpoint of this architecture?")


def _shape(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape)) or "a number"


def read_weights(path: Path) -> dict[str, Tensor]:
    """Tensors of a .safetensors or .pth file, read without running any code that the file might hold."""
    if path.is_dir():
        path = path / "model.safetensors"
    if not path.is_file():
        raise FileNotFoundError(
            f"--init {path} does not exist; expected a .safetensors or .pth file, or a run's folder."
        )
    verify(path)
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file  # noqa: PLC0415 - only where it is needed

            return dict(load_file(path))
        content = load_tensors(path)
    except Exception as error:  # every reader has errors of its own
        if is_lack_of_memory(error):
            raise
        reason = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
        raise ValueError(f"{path} cannot be read as weights ({reason}). Save a plain state_dict of tensors.") from None
    content = content if isinstance(content, dict) else {}
    for key in WRAPPERS:
        if isinstance(content.get(key), dict):
            content = content[key]
    tensors = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    if not tensors:
        raise ValueError(f"{path} holds no tensors by name; expected a state_dict.")
    return tensors


def load_tensors(path: Path) -> Any:
    """What torch.save has written, if it holds tensors and plain values only: no code runs, and no trap is sprung."""
    if path.stat().st_size:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if content.find(b"bytearray") >= 0:  # of any length that its writer likes, and torch would make it
                raise ValueError("it holds a bytearray, which is no tensor")
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
                raise ValueError("it is compressed, which torch.save never does")
    return torch.load(path, map_location="cpu", weights_only=True)


def _cleaned(state: dict[str, Tensor], backbone: nn.Module) -> dict[str, Tensor]:
    """Names as the backbone has them: prefixes of wrappers removed, then timm's own conversion where it has one."""
    own = set(backbone.state_dict())
    while not own & state.keys():
        prefix = next((prefix for prefix in PREFIXES if any(name.startswith(prefix) for name in state)), None)
        if prefix is None:
            break
        state = {name.removeprefix(prefix): value for name, value in state.items()}
    convert = getattr(sys.modules.get(type(backbone).__module__), "checkpoint_filter_fn", None)
    if convert is not None:  # for instance position embeddings for another image size
        try:
            state = dict(convert(dict(state), backbone))
        except (KeyError, TypeError, RuntimeError, AttributeError):
            return state  # not a checkpoint that timm's conversion is for
    return state


def weights_digest(module: nn.Module) -> str:
    """SHA-256 over names and values of all weights and buffers."""
    digest = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        digest.update(name.encode())
        content = value.detach().cpu().reshape(value.shape or (1,)).contiguous().view(torch.uint8)
        digest.update(array_digest(content.numpy()).encode())
    return digest.hexdigest()
