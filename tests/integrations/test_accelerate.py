"""Accelerate against a plain loop: it needs no adapter, only its own ways of accumulating and saving."""

import pytest
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from toys import LIMIT, MICRO, STEPS, criterion, gap, micro_batches, network, plain_loop, same_state, samples, sgd


def run(dtype, parts, first=0, last=STEPS, load=None, save=None):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=parts)
    model, loss = network(dtype), criterion("classwise")
    inputs, labels = samples(STEPS * parts * MICRO, dtype)
    chosen = slice(first * parts * MICRO, last * parts * MICRO)
    loader = DataLoader(TensorDataset(inputs[chosen], labels[chosen]), MICRO)
    model, optimizer, loader = accelerator.prepare(model, sgd(model), loader)
    accelerator.register_for_checkpointing(loss)
    if load:
        accelerator.load_state(str(load))
    for x, y in loader:
        with accelerator.accumulate(model):
            accelerator.backward(loss(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
    if save:
        accelerator.save_state(str(save))
    accelerator.free_memory()
    return model, loss


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ten_steps_equal_the_plain_loop(dtype, parts):
    model, loss = run(dtype, parts)
    own = criterion("classwise")
    other = plain_loop(network(dtype), own, micro_batches(*samples(STEPS * parts * MICRO, dtype), parts))
    print(f"accelerate, {dtype}, {parts} micro-batches: {gap(model, other):.1e}")
    assert gap(model, other) <= LIMIT[dtype]
    assert gap(model, network(dtype)) > 1e-2
    assert float((loss.car.confusion - own.car.confusion).abs().max()) <= LIMIT[dtype]


def test_a_resumed_run_equals_the_uninterrupted_one(tmp_path):
    whole, loss = run(torch.float32, 2)
    run(torch.float32, 2, last=5, save=tmp_path / "half")
    again, other = run(torch.float32, 2, first=5, load=tmp_path / "half")
    assert gap(whole, again) == 0
    assert same_state(loss, other)
    assert int(other.step) == 2 * STEPS
