"""Methods in bfloat16 and compiled: what the checks of spectail.testing find out, and that CAR keeps its digits."""

import pytest
import torch
import torch.nn.functional as F

from spectail import CARReference
from spectail.methods import METHODS, Method
from spectail.methods.metasaug import MetaSAug
from spectail.testing import begun, check_bf16, check_compiled, check_resume_compiled, settings
from spectail.testing.hardware import compiling_by
from spectail.training import car_term
from spectail.training.loop import train

HERE = __name__


class Rounded(Method):
    """Its loss is computed in whatever precision the logits have."""

    def loss(self, model, batches, step):
        found = super().loss(model, batches, step)
        p = found.logits / found.logits.abs().sum(1, keepdim=True)
        return found._replace(loss=-p.gather(1, found.target[:, None]).mean())


class Coarse(Method):
    """Takes a difference of large numbers, of which bfloat16 leaves nothing."""

    def loss(self, model, batches, step):
        found = super().loss(model, batches, step)
        return found._replace(loss=((found.logits + 1000) - 1000).square().float().mean())


class Around(Method):
    """Calls the parts of the backbone, so that compiling it does nothing."""

    def loss(self, model, batches, step):
        batch = batches["main"]
        logits = model.head(model.backbone.blocks(model.backbone.stem(batch.images).relu()).relu())
        return super().loss(lambda images: logits, batches, step)


class Tracing(Method):
    """Learns something else while it is being compiled."""

    def build(self, backbone, head):
        forward = backbone.forward
        backbone.forward = lambda images: forward(images) * (1.01 if torch.compiler.is_compiling() else 1.0)
        return super().build(backbone, head)


class TwiceDifferentiated(Method):
    """With a penalty on the gradient in the features: cannot be compiled, and does not say so."""

    def loss(self, model, batches, step):
        found = super().loss(model, batches, step)
        [slope] = torch.autograd.grad(found.loss, [model.backbone.blocks[0].weight], create_graph=True)
        return found._replace(loss=found.loss + slope.square().sum())


class Refused(TwiceDifferentiated):
    compiles = False


@pytest.mark.parametrize(
    ("method", "check", "message"),
    [
        (Rounded, check_bf16, "the loss is computed in bfloat16"),
        (Coarse, check_bf16, r"in bfloat16 and .* in float32"),
        (Around, check_compiled, "never calls the compiled backbone"),
        (Tracing, check_compiled, "compiled, not"),
    ],
)
def test_a_wrong_method_is_found_out(method, check, message, tmp_path):
    with pytest.raises(AssertionError, match=message):
        check(f"{HERE}:{method.__name__}", tmp_path)


def test_a_method_that_differentiates_twice_must_say_so(tmp_path):
    with pytest.raises(RuntimeError, match="double backward"):
        check_compiled(f"{HERE}:TwiceDifferentiated", tmp_path / "silent")
    check_compiled(f"{HERE}:Refused", tmp_path / "said")


def test_which_of_ours_cannot_be_compiled(tmp_path, monkeypatch):
    """None but MetaSAug with a step ahead of the whole network; that all others can is a check of the suite."""
    kept = {name: begun(settings(name, tmp_path / name)).method.compiles for name in METHODS}
    assert all(kept.values())
    options = {"options": {"virtual": "all"}, "hardware": {"compile": True}}
    with pytest.raises(ValueError, match="--compile: MetaSAug differentiates through its own step"):
        train(settings("metasaug", tmp_path / "refused", **options))
    monkeypatch.setattr(MetaSAug, "compiles", property(lambda self: True, lambda self, value: None))
    with pytest.raises(RuntimeError, match="double backward"), compiling_by("aot_eager"):
        train(settings("metasaug", tmp_path / "forced", **options))


@pytest.mark.parametrize("method", ["balms", "metasaug", "concutmix"])
def test_resumed_in_bf16_and_compiled(method, tmp_path):
    check_resume_compiled(method, tmp_path)


def test_car_has_all_digits_in_bf16(tmp_path, monkeypatch):
    """Its value in a step is that of its definition on the same logits, to the digits of float32."""
    seen = []

    class Noted(car_term.CARTerm):
        def forward(self, outcome, step):
            term = super().forward(outcome, step)
            seen.append((outcome.logits.detach(), outcome.target, term.detach()))
            return term

    monkeypatch.setattr(car_term, "CARTerm", Noted)
    trainer = begun(settings("car", tmp_path / "run", optim={"precision": "bf16"}))
    group, images = next(trainer.stage.groups())
    trainer.optimise(group, images)
    [(logits, target, term)] = seen
    assert torch.equal(logits, logits.bfloat16().float())  # the network ran in bfloat16
    assert torch.isfinite(F.cross_entropy(logits, target))
    expected = CARReference(trainer.counts)(logits.double(), target)
    torch.testing.assert_close(term.double(), 0.5 * expected, rtol=1e-5, atol=1e-7)
