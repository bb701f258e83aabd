"""A stand-in for an Apple GPU: tensors that say they are on "mps", are computed on the CPU, and refuse what it refuses.

It refuses float64, tensors of another device in one operation, and ``index_add_`` of int64.
"""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

MPS = torch.device("mps", 0)


class OnApple(torch.Tensor):
    """A tensor of the stand-in, around one on the CPU."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner):
        refuse_float64(inner.dtype)
        self = torch.Tensor._make_wrapper_subclass(cls, inner.shape, inner.stride(), dtype=inner.dtype, device=MPS)
        self.inner = inner
        return self

    def __repr__(self, *, tensor_contents=None):
        return f"OnApple({self.inner})"

    # what torch does in C++ before it asks __torch_dispatch__, which fails where it is built without MPS
    def __int__(self):
        return int(self.inner)

    def __float__(self):
        return float(self.inner)

    def __bool__(self):
        return bool(self.inner)

    def __getitem__(self, index):
        return OnApple(self.inner[tree_map(_inner, index)])

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), options=None):
        return compute(function, arguments, options or {})


class AppleGPU(TorchDispatchMode):
    """While it is on, tensors can be made on, and moved to, ``torch.device("mps")``."""

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        return compute(function, arguments, options or {})


def _inner(one):
    return one.inner if isinstance(one, OnApple) else one


def refuse_float64(dtype):
    if dtype == torch.float64:
        raise TypeError("the MPS framework has no float64")


def compute(function, arguments, options):
    """On the CPU; the result is where the operation or its inputs say."""
    found = []
    tree_map(lambda one: found.append(one) if isinstance(one, torch.Tensor) else None, (arguments, options))
    apple = any(isinstance(one, OnApple) for one in found)
    copies = function in (torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default)
    if apple and not copies and any(not isinstance(one, OnApple) and one.dim() for one in found):
        raise RuntimeError(f"{function}: all tensors must be on one device")
    if apple and function is torch.ops.aten.index_add_.default and found[-1].dtype == torch.int64:
        raise RuntimeError("index_add(): int64 is not supported on MPS")
    asked = options.get("device")
    there = apple if asked is None else torch.device(asked).type == "mps"
    if asked is not None:
        options = {**options, "device": torch.device("cpu")}
    inner, named = tree_map(_inner, (arguments, options))
    result = function(*inner, **named)
    if function.overloadpacket._qualified_op_name.endswith("_") and isinstance(arguments[0], torch.Tensor):
        return arguments[0]  # in place
    return tree_map(lambda one: OnApple(one) if there and isinstance(one, torch.Tensor) else one, result)
