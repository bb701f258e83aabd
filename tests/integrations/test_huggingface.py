"""Hugging Face's Trainer against a plain loop, with a ViT."""

import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from toys import (
    CLASSES,
    COUNTS,
    LIMIT,
    LR,
    MOMENTUM,
    STEPS,
    criterion,
    gap,
    micro_batches,
    plain_loop,
    same_state,
    samples,
)

from spectail import CARLoss
from spectail.integrations.huggingface import GroupMetrics, LossFunction
from spectail.metrics import Metrics

import transformers  # isort: skip - after spectail.integrations
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification  # isort: skip

IMAGE = (3, 8, 8)
SIZE = 4  # of a micro-batch


@pytest.fixture(autouse=True)
def _quiet():
    transformers.logging.set_verbosity_error()


def vit(dtype):
    torch.manual_seed(0)
    config = ViTConfig(
        image_size=8, patch_size=4, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_labels=CLASSES,
    )  # fmt: skip
    return ViTForImageClassification(config).to(dtype)


def items(inputs, labels):
    return [{"pixel_values": x, "labels": y} for x, y in zip(inputs, labels, strict=True)]


def trainer(folder, model, loss, data, parts, callbacks=True, **options):
    arguments = TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=SIZE, per_device_eval_batch_size=SIZE,
        gradient_accumulation_steps=parts, optim="sgd", optim_args=f"momentum={MOMENTUM}", learning_rate=LR,
        lr_scheduler_type="constant", max_grad_norm=0.0, train_sampling_strategy="sequential", use_cpu=True,
        report_to="none", disable_tqdm=True, dataloader_pin_memory=False, logging_strategy="no",
        **{"max_steps": STEPS, "save_strategy": "no", **options},
    )  # fmt: skip
    chosen = [loss] if callbacks and isinstance(loss, LossFunction) else []
    return Trainer(model, arguments, train_dataset=data, eval_dataset=data, compute_loss_func=loss, callbacks=chosen)


def plain(model, loss, groups):
    return plain_loop(model, loss, groups, logits=lambda outputs: outputs.logits)


@pytest.mark.parametrize("preset", ["paper", "classwise"])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ten_steps_equal_the_plain_loop(dtype, parts, preset, tmp_path):
    inputs, labels = samples(STEPS * parts * SIZE, dtype, IMAGE)
    model, loss = vit(dtype), LossFunction(criterion(preset))
    trainer(tmp_path, model, loss, items(inputs, labels), parts).train()
    own = criterion(preset)
    other = plain(vit(dtype), own, micro_batches(inputs, labels, parts, SIZE))
    difference = gap(model, other)
    print(f"hugging face, {dtype}, {parts} micro-batches, {preset}: {difference:.1e}")
    assert difference <= LIMIT[dtype]
    assert gap(model, vit(dtype)) > 1e-2  # it did learn something
    assert int(loss.criterion.step) == int(own.step) == STEPS * parts


def test_a_short_last_step_is_weighted_by_its_samples(tmp_path):
    """Five micro-batches in twos, the last with one sample of four: per epoch the steps have 8, 8 and 1 samples."""
    inputs, labels = samples(4 * SIZE + 1, shape=IMAGE)
    model, loss = vit(torch.float64), LossFunction(criterion())
    trainer(tmp_path, model, loss, items(inputs, labels), 2, max_steps=6).train()
    other = plain(vit(torch.float64), criterion(), 2 * micro_batches(inputs, labels, 2, SIZE))
    print(f"hugging face, short last step: {gap(model, other):.1e}")
    assert gap(model, other) <= 1e-6


def test_unequal_micro_batches_of_one_step(tmp_path):
    """Ignored labels make them unequal: 4 and 2 samples that count."""
    inputs, labels = samples(2 * SIZE, shape=IMAGE)
    labels[5], labels[7] = -100, -100
    model, loss = vit(torch.float64), LossFunction(criterion())
    trainer(tmp_path, model, loss, items(inputs, labels), 2, max_steps=3).train()
    kept = labels != -100
    group = [(inputs[:4], labels[:4]), (inputs[4:][kept[4:]], labels[4:][kept[4:]])]
    assert [len(part) for _, part in group] == [4, 2]
    assert gap(model, plain(vit(torch.float64), criterion(), 3 * [group])) <= 1e-6


def test_a_loss_without_weights_would_count_every_micro_batch_in_full(tmp_path):
    """Why the adapter exists: the same loss given to the Trainer as it is."""
    inputs, labels = samples(STEPS * 2 * SIZE, shape=IMAGE)
    bare, model = criterion(), vit(torch.float64)

    def naive(outputs, labels, num_items_in_batch=None):
        return bare(outputs.logits, labels)

    trainer(tmp_path, model, naive, items(inputs, labels), 2).train()
    assert gap(model, plain(vit(torch.float64), criterion(), micro_batches(inputs, labels, 2, SIZE))) > 1e-2


def test_soft_labels(tmp_path):
    inputs, labels = samples(6 * SIZE, shape=IMAGE)
    soft = 0.8 * torch.nn.functional.one_hot(labels, CLASSES).double() + 0.2 / CLASSES
    model, loss = vit(torch.float64), LossFunction(criterion())
    trainer(tmp_path, model, loss, items(inputs, soft), 2, max_steps=3).train()
    assert gap(model, plain(vit(torch.float64), criterion(), micro_batches(inputs, soft, 2, SIZE))) <= 1e-6


@pytest.mark.parametrize("preset", ["paper", "classwise"])
def test_a_resumed_run_equals_the_uninterrupted_one(preset, tmp_path):
    inputs, labels = samples(STEPS * 2 * SIZE, torch.float32, IMAGE)
    data = items(inputs, labels)
    whole, loss = vit(torch.float32), LossFunction(criterion(preset))
    trainer(tmp_path / "whole", whole, loss, data, 2, save_strategy="steps", save_steps=5).train()
    moved = tmp_path / "elsewhere" / "kept"
    shutil.copytree(tmp_path / "whole" / "checkpoint-5", moved)

    again, other = ViTForImageClassification.from_pretrained(moved), LossFunction(criterion(preset))
    trainer(tmp_path / "new", again, other, data, 2).train(resume_from_checkpoint=str(moved))
    assert gap(whole, again) == 0
    assert same_state(loss.criterion, other.criterion)
    assert int(other.criterion.step) == STEPS * 2
    assert float(other.criterion.car.confusion.sum()) > 0

    lost, empty = ViTForImageClassification.from_pretrained(moved), LossFunction(criterion(preset))
    job = trainer(tmp_path / "lost", lost, empty, data, 2)
    job.add_callback(Forget(empty))  # the same without the history
    job.train(resume_from_checkpoint=str(moved))
    assert gap(whole, lost) > 1e-6


def test_weights_that_were_not_restored_are_noticed(tmp_path):
    inputs, labels = samples(4 * SIZE, torch.float32, IMAGE)
    data = items(inputs, labels)
    save = {"save_strategy": "steps", "save_steps": 2}
    trainer(tmp_path, vit(torch.float32), LossFunction(criterion()), data, 1, max_steps=2, **save).train()
    weights = tmp_path / "checkpoint-2" / "model.safetensors"
    found = load_file(weights)
    found["classifier.weight"] += 0.1
    save_file(found, weights, {"format": "pt"})
    model = ViTForImageClassification.from_pretrained(tmp_path / "checkpoint-2")
    job = trainer(tmp_path, model, LossFunction(criterion()), data, 1, max_steps=4)
    with pytest.raises(ValueError, match=r"1 of 24 parameters are not those of the checkpoint.*from_pretrained"):
        job.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


class Forget(transformers.TrainerCallback):
    def __init__(self, loss):
        self.loss = loss

    def on_train_begin(self, *args, **kwargs):
        self.loss.criterion.car.reset()


def test_a_checkpoint_without_the_state_is_refused(tmp_path):
    inputs, labels = samples(4 * SIZE, torch.float32, IMAGE)
    data = items(inputs, labels)
    save = {"save_strategy": "steps", "save_steps": 2}
    trainer(
        tmp_path, vit(torch.float32), lambda out, y, num_items_in_batch: out.logits.sum(), data, 1, max_steps=2, **save
    ).train()
    checkpoint = str(tmp_path / "checkpoint-2")
    job = trainer(tmp_path, vit(torch.float32), LossFunction(criterion()), data, 1, max_steps=4)
    with pytest.raises(ValueError, match=r"resumes at step 2 and the checkpoint has no state.*missing='start'"):
        job.train(resume_from_checkpoint=checkpoint)
    fresh = LossFunction(criterion(), missing="start")
    trainer(tmp_path, vit(torch.float32), fresh, data, 1, max_steps=4).train(resume_from_checkpoint=checkpoint)
    assert int(fresh.criterion.step) == 2


def test_evaluation_gives_the_loss_and_leaves_the_history_alone(tmp_path):
    inputs, labels = samples(3 * SIZE, shape=IMAGE)
    model, loss = vit(torch.float64), LossFunction(criterion())
    job = trainer(tmp_path, model, loss, items(inputs, labels), 2)
    with torch.no_grad():
        model.eval()
        wanted = [criterion()(model(x).logits, y) for x, y in zip(inputs.split(SIZE), labels.split(SIZE), strict=True)]
    found = job.evaluate()["eval_loss"]
    assert found == pytest.approx(float(torch.stack(wanted).mean()), abs=1e-6)
    assert same_state(loss.criterion, criterion())


def test_group_metrics_are_those_of_the_library():
    _, labels = samples(60)
    logits = torch.randn(60, CLASSES, generator=torch.Generator().manual_seed(0))
    metrics = Metrics(COUNTS)
    metrics.update(logits, labels)
    wanted = metrics.compute()
    function = GroupMetrics(COUNTS)
    function((logits.numpy(), np.zeros_like(labels.numpy())))
    found = function((logits.numpy(), labels.numpy()))  # nothing is left of the call before
    assert "head" not in found  # no class has more than 100 images
    assert {
        name: wanted[name] for name in ("overall", "balanced", "medium", "tail", "spectral_norm")
    }.items() <= found.items()
    assert (
        wanted["per_class"][found["worst_class"]]
        == min(a for a in wanted["per_class"] if a is not None)
        == found["worst"]
    )


def test_mistakes_are_named(tmp_path):
    inputs, labels = samples(SIZE, torch.float32, IMAGE)
    data = items(inputs, labels)
    job = trainer(tmp_path, vit(torch.float32), LossFunction(criterion()), data, 1, callbacks=False)
    with pytest.raises(RuntimeError, match=r"pass callbacks=\[loss\] as well"):
        job.train()
    loss = LossFunction(criterion())
    trainer(tmp_path, vit(torch.float32), loss, data, 1)
    with pytest.raises(ValueError, match="the batch has no labels: name them 'labels'"):
        loss({"logits": torch.zeros(2, CLASSES)}, None)
    with pytest.raises(ValueError, match="did not count the labels"):
        loss({"logits": torch.zeros(2, CLASSES)}, torch.tensor([0, 1]))
    with pytest.raises(TypeError, match=r"must return its logits, as outputs\.logits or first; got dict"):
        loss({"scores": torch.zeros(2, CLASSES)}, torch.tensor([0, 1]), 2)
    with pytest.raises(TypeError, match="criterion must be a loss module such as CARLoss; got function"):
        LossFunction(lambda logits, labels: 0)
    with pytest.raises(ValueError, match="missing must be 'error' or 'start'; got 'ignore'"):
        LossFunction(criterion(), missing="ignore")
    with pytest.raises(ValueError, match="the label -100 only; got ignore_index=0"):
        LossFunction(CARLoss(COUNTS, ignore_index=0))
