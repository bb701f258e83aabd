"""What is done to logits after training: a constant added to each class, and a temperature.

`spectail adjust` chooses it from predictions. A run that has one in its folder, ``adjustment.json``, applies it
wherever its model is used.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from .._utils.digests import verify
from .._utils.errors import first_line
from .._utils.files import read_regular, write_json

FILE = "adjustment.json"
"""Its name in the folder of a run."""


@dataclass(frozen=True)
class Adjustment:
    """Logits become ``(logits + offsets) / temperature``.

    Example:
        >>> adjustment = Adjustment(("cat", "otter"), (0.0, 1.5), temperature=2.0)
        >>> adjustment.apply(np.array([[3.0, 2.0]])).tolist()
        [[1.5, 1.75]]
    """

    class_names: tuple[str, ...]
    offsets: tuple[float, ...]
    """Added to the logits, one for each class."""
    temperature: float = 1.0
    """What the sum is divided by: above 1 the classifier was too sure of itself."""
    tau: float | None = None
    """Where the offsets are ``-tau log(n_j / N)``, or began there; None if the prior has no part in them."""
    goal: str | None = None
    """What it was chosen for."""
    source: str | None = None
    """What it was chosen on."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "class_names", tuple(map(str, self.class_names)))
        object.__setattr__(self, "offsets", tuple(map(float, self.offsets)))
        if len(self.offsets) != len(self.class_names):
            known = f"{len(self.class_names):,} classes"
            raise ValueError(f"there must be one offset for each of the {known}; got {len(self.offsets):,}.")
        if not all(map(math.isfinite, self.offsets)):
            raise ValueError("offsets must be finite numbers.")
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise ValueError(f"temperature must be more than 0 and finite; got {self.temperature}.")

    def apply(self, logits: NDArray[Any]) -> NDArray[Any]:
        """Adjusted logits of shape (N, K), in the same precision."""
        kind = logits.dtype if logits.dtype.kind == "f" else np.dtype(np.float64)
        adjusted = logits + np.array(self.offsets, dtype=kind)
        adjusted /= kind.type(self.temperature)
        return np.asarray(adjusted)

    def on(self, model: nn.Module) -> nn.Module:
        """The model with its logits adjusted."""
        return Adjusted(model, Tensor(self.offsets), self.temperature)

    def require_classes(self, names: Sequence[str], where: str) -> None:
        """Refuse classes that are not its own. Classes that it knows by number only are taken as they come."""
        if self.class_names in (tuple(names), tuple(map(str, range(len(names))))):
            return
        if len(names) != len(self.class_names):
            raise ValueError(
                f"the adjustment is for {len(self.class_names):,} classes, but {where} has {len(names):,}."
            )
        at = next(at for at, (own, other) in enumerate(zip(self.class_names, names, strict=True)) if own != other)
        raise ValueError(
            f"the adjustment is for other classes: {at} is {self.class_names[at]!r}, but {names[at]!r} in {where}."
        )

    def facts(self) -> dict[str, Any]:
        """What results say about it: everything but the names of the classes."""
        return {key: value for key, value in asdict(self).items() if key != "class_names"} | {
            "offsets": list(self.offsets)
        }

    def save(self, path: Path) -> None:
        write_json(path, {"format": 1} | asdict(self))

    @classmethod
    def load(cls, path: Path) -> Adjustment:
        """Read a file that :meth:`save` or `spectail adjust` wrote."""
        verify(path)
        try:
            content = json.loads(read_regular(path))
        except (FileNotFoundError, IsADirectoryError):
            raise FileNotFoundError(f"{path} is no file; expected what `spectail adjust` writes.") from None
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"{path} is no adjustment ({first_line(error)}); write it with `spectail adjust`."
            ) from None
        if not isinstance(content, dict) or content.pop("format", None) != 1:
            raise ValueError(f"{path} is no adjustment; expected what `spectail adjust` writes.")
        try:
            return cls(**content)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path} is a damaged adjustment: {first_line(error)}.") from None


class Adjusted(nn.Module):
    """A model whose logits are shifted by a constant for each class, and divided by a temperature."""

    shift: Tensor

    def __init__(self, model: nn.Module, shift: Tensor, temperature: float = 1.0) -> None:
        super().__init__()
        self.model = model
        self.temperature = temperature
        self.register_buffer("shift", shift.float())

    def forward(self, images: Tensor) -> Tensor:
        shifted: Tensor = self.model(images) + self.shift
        return shifted if self.temperature == 1 else shifted / self.temperature
