"""Lightning against a plain loop; what ConfusionMonitor logs against the formulas."""

import pytest
import torch
from lightning_toys import Kept, Module, loader, trainer
from toys import (
    CLASSES,
    COUNTS,
    LIMIT,
    MICRO,
    STEPS,
    criterion,
    gap,
    micro_batches,
    network,
    plain_loop,
    same_state,
    samples,
)

from spectail import functional as SF
from spectail.integrations.lightning import ConfusionMonitor

from lightning.pytorch.callbacks import ModelCheckpoint  # isort: skip - after spectail.integrations
from torchmetrics.classification import MulticlassConfusionMatrix  # isort: skip

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec.*is deprecated"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`"),
    pytest.mark.filterwarnings("ignore:.*defined a `validation_step` but have no `val_dataloader`"),
]


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ten_steps_equal_the_plain_loop(dtype, parts):
    data = samples(STEPS * parts * MICRO, dtype)
    module = Module(dtype)
    trainer(parts, [ConfusionMonitor()]).fit(module, loader(*data))
    other = plain_loop(network(dtype), criterion(), micro_batches(*data, parts))
    print(f"lightning, {dtype}, {parts} micro-batches: {gap(module.model, other):.1e}")
    assert gap(module.model, other) <= LIMIT[dtype]
    assert gap(other, network(dtype)) > 1e-2
    assert int(module.criterion.step) == STEPS * parts


@pytest.mark.parametrize("preset", ["paper", "classwise"])
def test_a_resumed_run_equals_the_uninterrupted_one(preset, tmp_path):
    data = samples(5 * MICRO, torch.float32)
    whole = Module(torch.float32, preset)
    keep = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
    trainer(callbacks=[keep], max_epochs=2, enable_checkpointing=True).fit(whole, loader(*data))
    again = Module(torch.float32, preset)
    trainer(max_epochs=2).fit(again, loader(*data), ckpt_path=tmp_path / "epoch=0.ckpt")
    assert gap(whole.model, again.model) == 0
    assert same_state(whole.criterion, again.criterion)
    assert int(again.criterion.step) == STEPS

    saved = torch.load(tmp_path / "epoch=0.ckpt", weights_only=False)
    for name, value in Module(torch.float32, preset).criterion.state_dict().items():
        saved["state_dict"][f"criterion.{name}"] = value  # the same without the history
    torch.save(saved, tmp_path / "lost.ckpt")
    lost = Module(torch.float32, preset)
    trainer(max_epochs=2).fit(lost, loader(*data), ckpt_path=tmp_path / "lost.ckpt")
    assert gap(whole.model, lost.model) > 1e-6


def test_the_log_holds_spectral_norm_spectrum_and_worst_class():
    data, shown = samples(4 * MICRO), samples(70)
    module, log = Module(), Kept()
    trainer(callbacks=[ConfusionMonitor(singular_values=3)], logger=log).fit(module, loader(*data), loader(*shown))

    car = module.criterion.car
    assert len(log.of("car/spectral_norm")) == 4
    assert log.of("car/spectral_norm")[-1] == pytest.approx(float(car.last.spectral_norm), rel=1e-5)
    spectrum = torch.linalg.svdvals(car.confusion * car.weights)
    for place in range(3):
        assert log.of(f"car/singular_value_{place + 1}")[-1] == pytest.approx(float(spectrum[place]), rel=1e-5)
    assert not log.of("car/singular_value_4")

    table = MulticlassConfusionMatrix(CLASSES)(module.model(shown[0]), shown[1]).double()  # rows are true classes
    accuracy = 100 * table.diagonal() / table.sum(1)
    assert log.of("val/overall")[-1] == pytest.approx(100 * float(table.diagonal().sum() / table.sum()), rel=1e-5)
    assert log.of("val/worst")[-1] == pytest.approx(float(accuracy.min()), abs=1e-4)
    assert int(log.of("val/worst_class")[-1]) == int(accuracy.argmin())
    hard = (table / table.sum(1, keepdim=True)).T.fill_diagonal_(0) * SF.class_weights(COUNTS).double()
    spectrum = torch.linalg.svdvals(hard)
    assert log.of("val/spectral_norm")[-1] == pytest.approx(float(spectrum[0]), rel=1e-5)
    for place in range(3):
        assert log.of(f"val/singular_value_{place + 1}")[-1] == pytest.approx(
            float(spectrum[place]), rel=1e-4, abs=1e-6
        )
    assert len(log.of("val/worst")) == 1  # not of the sanity check
    assert not log.of("val/head")  # no class has more than 100 images


def test_counts_alone_log_the_validation_set():
    class Plain(Module):
        def __init__(self):
            super().__init__()
            self.criterion = torch.nn.CrossEntropyLoss()

    log = Kept()
    data = loader(*samples(2 * MICRO))
    trainer(callbacks=[ConfusionMonitor(COUNTS)], logger=log).fit(Plain(), data, data)
    assert log.of("val/worst")
    assert not log.of("car/spectral_norm")
    with pytest.raises(ValueError, match=r"Plain has no CAR or CARLoss.*ConfusionMonitor\(class_counts\)"):
        trainer(callbacks=[ConfusionMonitor()]).fit(Plain(), data, data)


def test_mistakes_are_named():
    class Silent(Module):
        def validation_step(self, batch, batch_idx):
            return None

    data = loader(*samples(MICRO))
    with pytest.raises(ValueError, match=r"must return \{'logits': \.\.\., 'target': \.\.\.\}.*got NoneType"):
        trainer(callbacks=[ConfusionMonitor()]).fit(Silent(), data, data)
    log = Kept()
    trainer(callbacks=[ConfusionMonitor(validation=False, singular_values=0)], logger=log).fit(Silent(), data, data)
    assert log.of("car/spectral_norm")
    assert not [name for _, row in log.rows for name in row if name.startswith("val/") or "singular" in name]
    with pytest.raises(ValueError, match="singular_values must be 0 or more; got -1"):
        ConfusionMonitor(singular_values=-1)
