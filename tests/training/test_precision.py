"""Mixed precision on a CPU: bf16 trains, resumes bit for bit and leaves CAR in float32; fp16 is refused in words."""

import pytest
import torch
from training.runs import Stop, StopAt, assert_same, metrics, predictions, results, settings, shake

from spectail.car import CAR
from spectail.cli.main import main
from spectail.training.loop import train

BF16 = {"optim__precision": "bf16"}
CASES = {
    "ce": {"model__model": "tiny-norm"},
    "car": {"method": "car", "model__model": "tiny-dropout"},
    "car-classwise": {"method": "car", "car__preset": "classwise", "optim__accumulation": 2, "optim__ema": 0.8},
    "probe": {"method": "car", "probe": True},
}


@pytest.mark.parametrize("case", CASES)
def test_resumed_in_bf16_is_uninterrupted(case, tmp_path):
    changes = CASES[case] | BF16
    train(settings(tmp_path / "whole", **changes))
    config = settings(tmp_path / "cut", checkpoint_every=1, **changes)
    with pytest.raises(Stop):
        train(config, reporter=StopAt(steps=3))
    assert max(path.name for path in (config.output / "checkpoints").iterdir()) == "step-00000002"
    shake()
    train(config, resume=True)
    assert_same(tmp_path / "whole", tmp_path / "cut")


def test_bf16_learns_and_is_not_float32_in_disguise(tmp_path):
    changes = {"model__model": "tiny-norm", "optim__epochs": 12, "method": "car"}
    full = train(settings(tmp_path / "full", **changes))
    half = train(settings(tmp_path / "half", **changes, **BF16))
    losses = [line["loss"] for line in metrics(tmp_path / "half")]
    wanted = [line["loss"] for line in metrics(tmp_path / "full")]
    assert losses[-1] < 0.9 * losses[0]
    assert losses != wanted
    assert losses == pytest.approx(wanted, rel=0.1)
    assert half["overall"] == pytest.approx(full["overall"], abs=10)


def test_weights_history_and_logits_stay_float32(tmp_path):
    config = settings(tmp_path / "run", method="car", checkpoint_every=1, **BF16)
    with pytest.raises(Stop):
        train(config, reporter=StopAt(steps=4))
    newest = max((config.output / "checkpoints").iterdir())
    state = torch.load(newest / "state.pt", weights_only=True)
    for part in ("learner", "car"):
        kinds = {value.dtype for value in tensors(state[part]) if value.is_floating_point()}
        assert torch.float32 in kinds, part
        assert kinds <= {torch.float32, torch.float64}, part
    train(config, resume=True)
    assert predictions(config.output)["logits"].dtype == "float32"


def test_car_computes_in_float32_on_logits_that_the_network_made_in_bf16(tmp_path, monkeypatch):
    heard = []
    forward = CAR.forward

    def listen(self, logits, target, *args, **kwargs):
        value = forward(self, logits, target, *args, **kwargs)
        heard.append((logits.detach(), value.detach(), torch.is_autocast_enabled("cpu")))
        return value

    monkeypatch.setattr(CAR, "forward", listen)
    train(settings(tmp_path / "run", method="car", **BF16))
    assert len(heard) == 10
    for logits, value, autocast in heard:
        assert logits.dtype == value.dtype == torch.float32
        assert not autocast
        assert torch.equal(logits, logits.bfloat16().float())  # a head in bf16 made them
        assert not torch.equal(value, value.bfloat16().float()) or value == 0
    assert any(value > 0 for _, value, _ in heard)


def test_precision_may_not_change_on_resume(tmp_path):
    with pytest.raises(Stop):
        train(settings(tmp_path / "run", **BF16), reporter=StopAt(epochs=1))
    with pytest.raises(ValueError, match=r"optim\.precision: 'bf16' -> 'no'"):
        train(settings(tmp_path / "run"), resume=True)


def test_a_run_after_one_in_bf16_is_in_float32(tmp_path):
    """Accelerate keeps the precision in a state of the process."""
    train(settings(tmp_path / "before", method="car"))
    train(settings(tmp_path / "half", method="car", **BF16))
    train(settings(tmp_path / "after", method="car"))
    assert_same(tmp_path / "before", tmp_path / "after")
    assert results(tmp_path / "half")["nll"] != results(tmp_path / "after")["nll"]


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_fp16_on_a_cpu_is_refused_before_anything_is_written(device, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("spectail.training.config.has_gpu", lambda: False)
    output = tmp_path / "run"
    assert main(["train", "--precision", "fp16", "--device", device, "--output", str(output)]) == 1
    said = capsys.readouterr().err.strip()
    assert said == "spectail train: --precision fp16 needs a GPU; use --precision bf16 or no on a CPU."
    assert not output.exists()


def tensors(content):
    if isinstance(content, torch.Tensor):
        yield content
    for value in content.values() if isinstance(content, dict) else ():
        yield from tensors(value)
