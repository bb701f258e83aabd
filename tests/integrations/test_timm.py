"""timm's task, Mixup and checkpoints against a plain loop."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from toys import CLASSES, LIMIT, MICRO, STEPS, criterion, gap, network, same_state, samples, sgd

from spectail.integrations.timm import StatefulTask

from timm.data import Mixup  # isort: skip - after spectail.integrations
from timm.utils import CheckpointSaver  # isort: skip


def mixed_batches(dtype, parts=1):
    """Batches of timm's Mixup; it draws from numpy's generator, and mixes in place."""
    np.random.seed(0)  # noqa: NPY002 - the one timm uses
    mixup = Mixup(mixup_alpha=0.8, label_smoothing=0.1, num_classes=CLASSES)
    inputs, labels = samples(STEPS * parts * MICRO, dtype)
    pairs = zip(inputs.split(MICRO), labels.split(MICRO), strict=True)
    return [(x, y.to(dtype)) for x, y in (mixup(part.clone(), truth) for part, truth in pairs)]


def run(task, optimizer, data, parts=1):
    task.train()
    for number, (x, soft) in enumerate(data, 1):
        (task(x, soft)["loss"] / parts).backward()  # timm's script divides by its grad_accum_steps
        if number % parts == 0:
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ten_steps_equal_the_plain_loop(dtype, parts):
    data = mixed_batches(dtype, parts)
    assert (data[0][1] > 0).sum(1).min() == CLASSES  # smoothed: mass on every class
    task = StatefulTask(network(dtype), criterion(), verbose=False)
    run(task, sgd(task.trainable_module), data, parts)
    model, own = network(dtype), criterion()
    optimizer = sgd(model)
    for start in range(0, len(data), parts):
        optimizer.zero_grad()
        for x, soft in data[start : start + parts]:
            logits = model(x)
            ((F.cross_entropy(logits, soft) + own.alpha * own.car(logits, soft)) / parts).backward()
        optimizer.step()
    print(f"timm, {dtype}, {parts} micro-batches: {gap(task.trainable_module, model):.1e}")
    assert gap(task.trainable_module, model) <= LIMIT[dtype]
    assert gap(model, network(dtype)) > 1e-2


def test_a_resumed_run_equals_the_uninterrupted_one(tmp_path):
    data = mixed_batches(torch.float32)
    whole = StatefulTask(network(torch.float32), criterion("classwise"), verbose=False)
    run(whole, sgd(whole.trainable_module), data)

    half = StatefulTask(network(torch.float32), criterion("classwise"), verbose=False)
    half.setup_ema(decay=0.9)
    optimizer = sgd(half.trainable_module)
    run(half, optimizer, data[:5])
    CheckpointSaver(half.trainable_module, optimizer, task=half, checkpoint_dir=tmp_path).save_checkpoint(0)

    saved = torch.load(tmp_path / "last.pth.tar")
    assert "task_state" in saved
    assert "task_state_ema" not in saved
    again = StatefulTask(network(torch.float32), criterion("classwise"), verbose=False)
    optimizer = sgd(again.trainable_module)
    again.load_checkpoint_state(saved["state_dict"], saved["task_state"])
    optimizer.load_state_dict(saved["optimizer"])
    run(again, optimizer, data[5:])
    assert gap(whole.trainable_module, again.trainable_module) == 0
    assert same_state(whole.criterion, again.criterion)
    assert int(again.criterion.step) == STEPS


def test_mistakes_are_named():
    with pytest.raises(TypeError, match="criterion must be a loss module such as CARLoss; got function"):
        StatefulTask(network(), F.cross_entropy)
    task = StatefulTask(network(), criterion(), verbose=False)
    with pytest.raises(ValueError, match="no state of the loss: load it with strict=False"):
        task.load_checkpoint_state(network().state_dict(), None)
    task.load_checkpoint_state(network().state_dict(), None, strict=False)
