# ruff: noqa: PLW0108 - a lambda looks the method up under the guard
"""The guard itself: what it refuses, what it lets through, and what it takes for the host's."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from no_waits import Meets, NoWaits, Waits
from torch import nn

VALUES = torch.tensor([3.0, 1.0, 2.0])
PLACES = torch.tensor([0, 2, 2])
MASK = torch.tensor([True, False, True])
SQUARE = torch.eye(3)
DEVICE = torch.device("cpu")  # what the guard takes for the accelerator

WAITING = {
    "item": lambda: VALUES[0].item(),
    "float": lambda: float(VALUES.sum()),
    "int": lambda: int(PLACES[0]),
    "bool": lambda: bool(MASK.any()),
    "if": lambda: 1 if VALUES.sum() > 0 else 0,
    "range": lambda: range(PLACES[1]),
    "in": lambda: 3.0 in VALUES,
    "tolist": lambda: VALUES.tolist(),
    "numpy": lambda: VALUES.numpy(),
    "array": lambda: np.asarray(VALUES),
    "cpu": lambda: VALUES.cpu(),
    "to host": lambda: VALUES.to("cpu"),
    "text": lambda: f"{VALUES.sum():.2f}",
    "repr": lambda: repr(VALUES),
    "number as index": lambda: VALUES[PLACES[1]],
    "equal": lambda: torch.equal(VALUES, VALUES),
    "allclose": lambda: torch.allclose(VALUES, VALUES),
    "is_nonzero": lambda: VALUES[0].is_nonzero(),
    "nonzero": lambda: MASK.nonzero(),
    "where": lambda: torch.where(MASK),
    "argwhere": lambda: torch.argwhere(MASK),
    "masked_select": lambda: VALUES.masked_select(MASK),
    "mask as index": lambda: VALUES[MASK],
    "byte as index": lambda: VALUES[PLACES.byte()],
    "mask assigned": lambda: VALUES.clone().__setitem__(MASK, VALUES[:2]),
    "list as index": lambda: VALUES[[0, 2]],
    "index of the host": lambda: VALUES[torch.from_numpy(np.array([0, 2]))],
    "unique": lambda: PLACES.unique(),
    "unique, inverse": lambda: torch.unique(PLACES, return_inverse=True),
    "unique_consecutive": lambda: PLACES.unique_consecutive(),
    "unique of rows": lambda: SQUARE.unique(dim=0),
    "bincount": lambda: PLACES.bincount(minlength=4),
    "histc": lambda: VALUES.histc(4),
    "multinomial": lambda: VALUES.multinomial(1),
    "repeat_interleave": lambda: VALUES.repeat_interleave(PLACES),
    "normal": lambda: torch.normal(0.0, VALUES),
    "eigh": lambda: torch.linalg.eigh(SQUARE),
    "eigvalsh": lambda: torch.linalg.eigvalsh(SQUARE),
    "svd": lambda: torch.linalg.svd(SQUARE),
    "solve": lambda: torch.linalg.solve(SQUARE, VALUES),
    "inv": lambda: torch.linalg.inv(SQUARE),
    "cholesky": lambda: torch.linalg.cholesky(SQUARE),
    "matrix_exp": lambda: torch.linalg.matrix_exp(SQUARE),
    "new_tensor": lambda: VALUES.new_tensor(3),
    "tensor": lambda: torch.tensor([1.0, 2.0], device=DEVICE),
    "as_tensor": lambda: torch.as_tensor(0.5, device=VALUES.device),
    "to device": lambda: torch.zeros(3).to(DEVICE),
    "to one of the device": lambda: torch.zeros(3).to(VALUES),
    "copy to device": lambda: VALUES.clone().copy_(torch.zeros(3)),
    "copy to host": lambda: torch.zeros(3).copy_(VALUES),
}
FREE = {
    "arithmetic": lambda: (VALUES * 2 + SQUARE.sum()).exp() @ SQUARE,
    "number of the host": lambda: VALUES * torch.tensor(2.0),
    "index": lambda: SQUARE[PLACES],
    "slices": lambda: SQUARE[1:, None, ..., 0],
    "where": lambda: torch.where(MASK, VALUES, 0.0),
    "masked_fill": lambda: VALUES.masked_fill(MASK, 0.0),
    "index_add": lambda: VALUES.index_add(0, PLACES, VALUES),
    "gather": lambda: SQUARE.gather(1, PLACES[:, None]),
    "topk": lambda: VALUES.topk(2),
    "sort": lambda: VALUES.sort(stable=True),
    "new_full": lambda: VALUES.new_full((), 3),
    "full": lambda: torch.full((3,), 0.5, device=DEVICE) + VALUES,
    "arange": lambda: torch.arange(3, device=DEVICE) + PLACES,
    "repeat_interleave": lambda: VALUES.repeat_interleave(2),
    "cross entropy": lambda: F.cross_entropy(SQUARE, PLACES),
    "qr": lambda: torch.linalg.qr(SQUARE),
    "clip": lambda: nn.utils.clip_grad_norm_([nn.Parameter(VALUES)], 1.0),
    "draws of the host": lambda: int(torch.randint(9, (), generator=torch.Generator())),
    "list of the host": lambda: torch.tensor([1, 2]).tolist(),
    "numpy on the host": lambda: (torch.from_numpy(np.arange(3)) + torch.arange(3)).numpy(),
    "sent": lambda: torch.zeros(3).to(DEVICE, non_blocking=True) + VALUES,
    "sent in another type": lambda: torch.zeros(3, dtype=torch.int64).to(VALUES, non_blocking=True) + VALUES,
    "brought": lambda: torch.zeros(3).copy_(VALUES, non_blocking=True).tolist(),
    "brought by to": lambda: VALUES.to("cpu", non_blocking=True).tolist(),
}


@pytest.mark.parametrize("name", WAITING)
def test_what_waits_is_refused(name):
    with NoWaits(), pytest.raises(Waits, match="makes the host wait"):
        WAITING[name]()


@pytest.mark.parametrize("name", FREE)
def test_what_does_not_wait_passes(name):
    with NoWaits():
        FREE[name]()


def test_it_says_which_operation():
    with NoWaits(), pytest.raises(Waits, match=r"aten\.nonzero.*shape of the result depends on values"):
        MASK.nonzero()


def test_what_was_sent_is_on_the_device():
    with NoWaits():
        sent = torch.zeros(3).to(DEVICE, non_blocking=True)
        with pytest.raises(Waits):
            sent.tolist()


def test_host_and_device_do_not_meet():
    with NoWaits() as guard:
        with pytest.raises(Meets, match=r"aten\.add.*\[\(3,\)\]"):
            VALUES + torch.zeros(3)
        with guard.paused():
            VALUES + torch.zeros(3)


def test_the_named_are_on_the_host_and_so_is_what_follows_from_them():
    labels = torch.tensor([0, 1, 1])
    with NoWaits(host={"labels": [labels]}):
        assert (labels[1:] + 1).tolist() == [2, 2]
        assert labels.bincount().tolist() == [1, 2]


def test_backward_is_guarded():
    class Reads(torch.autograd.Function):
        @staticmethod
        def forward(ctx, values):
            return values * 2

        @staticmethod
        def backward(ctx, slope):
            return slope * slope.sum().item()

    weight = torch.ones(3, requires_grad=True)
    with NoWaits():
        F.linear(VALUES, weight[None]).sum().backward()
        with pytest.raises(Waits):
            Reads.apply(weight).sum().backward()


def test_paused_and_afterwards():
    guard = NoWaits()
    for _ in range(2):
        with guard:
            with guard.paused():
                assert VALUES.sum().item() == 6
            with pytest.raises(Waits):
                VALUES.sum().item()
    assert VALUES.tolist() == [3, 1, 2]
    assert torch.from_numpy(np.zeros(2)).tolist() == [0, 0]
