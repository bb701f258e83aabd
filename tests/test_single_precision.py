"""CAR on a device without double precision, as Apple GPUs are: a stand-in that refuses every float64 tensor."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from spectail import CAR, CARLoss
from spectail._core.dtypes import widest

COUNTS = [60, 20, 5, 2]


class NoFloat64(TorchDispatchMode):
    """What such a device does when it is asked for double precision."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        for value in found if isinstance(found, tuple | list) else (found,):
            if isinstance(value, torch.Tensor) and value.dtype == torch.float64:
                raise TypeError(f"this device has no float64: {func}")
        return found


@pytest.fixture
def apple(monkeypatch):
    """The CPU as such a device; the solver is the one of devices that are not the CPU."""
    monkeypatch.setattr("spectail._core.dtypes.holds_float64", lambda device: False)
    monkeypatch.setitem(CAR.__init__.__kwdefaults__, "solver", "fixed")


def batches(soft):
    generator = torch.Generator().manual_seed(0)
    for _ in range(4):
        logits = torch.randn(16, 4, generator=generator).requires_grad_()
        labels = torch.randint(4, (16,), generator=generator)
        yield logits, torch.nn.functional.one_hot(labels, 4).float() if soft else labels


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("make", [CARLoss, CARLoss.classwise, CARLoss.balanced])
def test_car_trains_without_double_precision(apple, make, soft):
    loss = make(COUNTS).to("cpu")  # a move, as to any device
    assert loss.car.history.factor.dtype == torch.float32
    with NoFloat64():
        for logits, labels in batches(soft):
            loss(logits, labels).backward()
            assert torch.isfinite(logits.grad).all()
        loss.car.reset()
    assert widest(torch.device("cpu")) == torch.float32


def test_it_gives_the_values_of_the_cpu(monkeypatch):
    """Single precision in the factor of the history changes the last digits at most."""
    wide = [CARLoss.classwise(COUNTS) for _ in range(2)]
    expected = [wide[0](*batch).item() for batch in batches(soft=False)]
    monkeypatch.setattr("spectail._core.dtypes.holds_float64", lambda device: False)
    narrow = wide[1].to("cpu")
    assert narrow.car.history.factor.dtype == torch.float32
    assert [narrow(*batch).item() for batch in batches(soft=False)] == pytest.approx(expected, rel=1e-5)


def test_the_stand_in_refuses():
    with NoFloat64(), pytest.raises(TypeError, match="no float64"):
        torch.zeros(2).double()
