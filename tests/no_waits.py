"""A stand-in for an accelerator on a CPU: it refuses whatever would make the host wait for the device.

    with NoWaits(host=[indices]):
        loss = method.loss(model, batches, step)

Every tensor counts as one of the device, but for those of the host: the named ones, those made under the guard without
``device=`` or from numpy, those computed from them alone, and what a ``non_blocking`` copy has brought to the host.

Refused are reading a value, shapes that depend on values, and copies between host and device that are not
``non_blocking``. A host tensor of one dimension or more must not meet a device tensor either: an accelerator cannot
add the two. The device is called "cpu" here, so ``.to(torch.device("cpu"))`` is taken for a move to the device, and
``.to("cpu")`` and ``.cpu()`` for one to the host.

Not seen: whether what a ``non_blocking`` copy brings has arrived when it is read; ``data_ptr`` and the like; numpy
views made before the guard; work in other threads.
"""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten
READS = "the host reads a value"
SHAPE = "the shape of the result depends on values"
CHECKS = "it checks on the host whether the factorisation has worked"
WAITING = {
    aten._local_scalar_dense: READS,
    aten.is_nonzero: READS,
    aten.equal: READS,
    aten.allclose: READS,
    aten.nonzero: SHAPE,
    aten.masked_select: SHAPE,
    aten._unique: SHAPE,
    aten._unique2: SHAPE,
    aten.unique_dim: SHAPE,
    aten.unique_consecutive: SHAPE,
    aten.unique_dim_consecutive: SHAPE,
    aten._to_sparse: SHAPE,
    aten.bincount: SHAPE + ", also with minlength: the largest value is read",
    aten.histc: "without a range it reads the smallest and the largest value",
    aten.multinomial: "it checks on the host that the weights are valid",
    aten.embedding_renorm_: "it looks for the different indices",
    aten.linalg_matrix_exp: "the norms decide how it is computed",
    aten._linalg_check_errors: CHECKS,
    aten._linalg_eigh: CHECKS,
    aten._linalg_svd: CHECKS,
    aten.linalg_eig: CHECKS,
    aten._linalg_eigvals: CHECKS,
    aten.linalg_lstsq: CHECKS,
}
"""On CUDA, as its sources have it. The forms that check nothing, such as ``cholesky_ex`` and ``qr``, are not here."""
INDEXING = {aten.index, aten.index_put, aten.index_put_, aten._unsafe_index, aten._index_put_impl_}
COPIES = {aten.copy_, aten._to_copy, aten.copy}
READING = {"item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__", "__index__", "__array__", "__repr__",
           "__format__", "__complex__"}  # fmt: skip
MAKING = {"tensor", "as_tensor", "new_tensor", "asarray"}


class Waits(AssertionError):
    """The host would wait for the device."""


class Meets(AssertionError):
    """Tensors of the host and of the device in one operation: an accelerator refuses that."""


class NoWaits(TorchDispatchMode):
    """The guard; may be entered again and again, and remembers what is on the host."""

    def __init__(self, host=()):
        super().__init__()
        self._host = {}
        self._pauses = 0
        self._python = _Python(self)
        self.on_host(host)

    def on_host(self, tensors):
        """Say that tensors, in lists or dicts if you like, are on the host."""
        for tensor in _tensors(tensors):  # while the reference is kept, no other storage gets the same number
            self._host[_storage(tensor)] = StorageWeakRef(tensor.untyped_storage())

    def on_device(self, tensor):
        self._host.pop(_storage(tensor), None)

    def is_host(self, tensor):
        return _storage(tensor) in self._host

    @contextmanager
    def paused(self):
        """For what is known to wait, or works with numbers on the host behind the scenes, as optimisers do."""
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1

    def refuse(self, what, why):
        if not self._pauses:
            raise Waits(f"{what} makes the host wait for the device: {why}.")

    def __enter__(self):
        super().__enter__()
        self._python.__enter__()
        self._from_numpy = torch.from_numpy  # neither mode sees it
        torch.from_numpy = self._of_host
        return self

    def __exit__(self, *error):
        torch.from_numpy = self._from_numpy
        self._python.__exit__(*error)
        return super().__exit__(*error)

    def _of_host(self, array):
        made = self._from_numpy(array)
        self.on_host(made)
        return made

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tensors = _tensors((args, kwargs))
        here = [tensor for tensor in tensors if self.is_host(tensor)]
        if len(here) < len(tensors):
            self._check(func, args, kwargs, here)
        found = func(*args, **kwargs)
        if tensors and len(here) == len(tensors):
            self.on_host(found)
        return found

    def _check(self, func, args, kwargs, here):
        """An operation with a tensor of the device."""
        packet = func.overloadpacket
        if packet in WAITING:
            self.refuse(func, WAITING[packet])
        if func in (aten.repeat_interleave.Tensor, aten.repeat_interleave.self_Tensor) and not kwargs.get(
            "output_size"
        ):
            self.refuse(func, SHAPE + "; output_size says it beforehand")
        if packet is aten.normal and len(_tensors(args[1:])):
            self.refuse(func, "it checks on the host that no deviation is negative")
        if packet in INDEXING:
            indices = _tensors(args[1])
            if any(index.dtype in (torch.bool, torch.uint8) for index in indices):
                self.refuse(func, SHAPE + ": where() and masked_fill() take a mask as it is")
            if any(self.is_host(index) for index in indices):
                self.refuse(func, "an index of the host is copied to the device first")
        if packet in COPIES:
            if here and not _non_blocking(func, args, kwargs):
                self.refuse(func, "a copy between host and device that is not non_blocking")
        elif any(tensor.ndim for tensor in here) and not self._pauses:
            raise Meets(f"{func} is given tensors of the host, of shapes {[tuple(one.shape) for one in here]}.")


class _Python(TorchFunctionMode):
    """What does not reach the dispatcher: on a CPU a move to "another" device is nothing at all."""

    def __init__(self, guard):
        super().__init__()
        self.guard = guard

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs, guard = kwargs or {}, self.guard
        name = getattr(func, "__name__", "")
        first = args[0] if args and isinstance(args[0], Tensor) else None
        if name == "__get__":  # of an attribute, such as grad
            return func(*args, **kwargs)
        if name in READING and first is not None and not guard.is_host(first):
            guard.refuse(f"Tensor.{name}", READS)
        if name == "to" and first is not None:
            return self._moved(func, first, args[1:], kwargs)
        there = not guard.is_host(first) if name == "new_tensor" else kwargs.get("device") is not None
        if name in MAKING and there and (name == "new_tensor" or first is None or guard.is_host(first)):
            guard.refuse(f"{name}(...)", "it copies from the host; full() and new_full() do not")
            return func(*args, **kwargs)
        if name in ("__getitem__", "__setitem__") and not guard.is_host(first):
            parts = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(isinstance(part, list | np.ndarray) for part in parts):
                guard.refuse(f"Tensor.{name}", "a list as index is copied to the device first")
        found = func(*args, **kwargs)
        if isinstance(found, Tensor) and not _tensors((args, kwargs)) and kwargs.get("device") is None:
            guard.on_host(found)
        return found

    def _moved(self, func, tensor, args, kwargs):
        guard = self.guard
        targets = [one for one in (*args, *kwargs.values()) if isinstance(one, torch.device | str | Tensor)]
        if not targets:
            return func(tensor, *args, **kwargs)
        target = targets[0]
        to_host = guard.is_host(target) if isinstance(target, Tensor) else isinstance(target, str)
        if to_host == guard.is_host(tensor):
            return func(tensor, *args, **kwargs)
        if not kwargs.get("non_blocking"):
            guard.refuse("Tensor.to", f"a copy to the {'host' if to_host else 'device'} that is not non_blocking")
        with guard.paused():
            copied = func(tensor, *args, **kwargs)
            copied = copied.clone() if _storage(copied) == _storage(tensor) else copied
        if to_host:
            guard.on_host(copied)
        else:
            guard.on_device(copied)
        return copied


def _storage(tensor):
    return tensor.untyped_storage()._cdata


def _tensors(things):
    return [one for one in tree_leaves(things) if isinstance(one, Tensor)]


def _non_blocking(func, args, kwargs):
    if "non_blocking" in kwargs:
        return kwargs["non_blocking"]
    place = [one.name for one in func._schema.arguments].index("non_blocking")
    return len(args) > place and args[place]
