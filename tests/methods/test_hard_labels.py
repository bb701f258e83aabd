"""Labels of the wrong kind, given to what needs class indices, are named in one sentence before anything is done."""

import re

import pytest
import torch
from torch import nn

from spectail import MixedTarget
from spectail.augment.balanced_contrastive import balanced_contrastive
from spectail.augment.covariance import ClassCovariance
from spectail.augment.rectify import rectify
from spectail.augment.remix import remix_share
from spectail.data.batch import Batch

SIZE = 6
HARD = torch.arange(SIZE) % 3
SOFT = nn.functional.one_hot(HARD, 3).float()
KINDS = {
    "soft": (SOFT, "torch.float32 of shape (6, 3); take labels.argmax(1)"),
    "float": (HARD.float(), "torch.float32 of shape (6,); take labels.long()"),
    "mixed": (MixedTarget(HARD, HARD.flip(0), 0.5), "a MixedTarget; take labels.argmax(1)"),
}
kinds = pytest.mark.parametrize("kind", KINDS)


def sentence(who, kind):
    wanted = f"{who} needs hard labels, (N,) class indices of an integer type; got {KINDS[kind][1]}, or a method that"
    return re.escape(wanted + " accepts soft labels, such as ce.") + "$"


def batch(labels, views=0):
    images = torch.rand(SIZE, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    return Batch((images,) * views if views else images, labels, torch.arange(SIZE))


def stepped(make, at, name, options, streams):
    method = make(name, **options)
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(192, 5), nn.Tanh())
    model = method.build(backbone, method.make_head(method.head or "linear", 5))
    step = at(190, generator=torch.Generator().manual_seed(0), optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    state = step.generator.get_state()
    views = {"main": 3, "foreground": 1} if name == "concutmix" and method.full else {}
    try:
        return method.loss(model, {key: batch(labels, views.get(key, 0)) for key, labels in streams.items()}, step)
    except TypeError:
        assert torch.equal(step.generator.get_state(), state)  # nothing was drawn
        raise


METHODS = [
    ("remix", {}, "remix", ()), ("remix", {"mix": "cutmix"}, "remix", ()),
    ("cmo", {"probability": 1.0}, "cmo", ("foreground",)), ("cmo", {"probability": 0.0}, "cmo", ("foreground",)),
    ("concutmix", {}, "concutmix", ("foreground",)), ("concutmix", {"mode": "lite"}, "concutmix", ("foreground",)),
    ("metasaug", {}, "metasaug", ("meta",)), ("metasaug", {"start": 1.0}, "metasaug", ("meta",)),
    ("safa-r", {}, "safa-r", ()),
]  # fmt: skip


@kinds
@pytest.mark.parametrize(("name", "options", "who", "others"), METHODS)
def test_methods(make, at, name, options, who, others, kind):
    found = stepped(make, at, name, options, {"main": HARD} | dict.fromkeys(others, HARD))
    assert torch.isfinite(found.loss)  # hard ones are welcome, of any integer type
    small = stepped(make, at, name, options, {"main": HARD.byte()} | dict.fromkeys(others, HARD.byte()))
    assert torch.isfinite(small.loss)
    with pytest.raises(TypeError, match="^" + sentence(who, kind)):
        stepped(make, at, name, options, {"main": KINDS[kind][0]} | dict.fromkeys(others, HARD))


@kinds
@pytest.mark.parametrize(
    ("name", "options", "other", "who"),
    [("cmo", {"probability": 0.0}, "foreground", "the foreground of cmo"),
     ("concutmix", {"probability": 0.0}, "foreground", "the foreground of concutmix"),
     ("metasaug", {}, "meta", "the meta batch of metasaug")],
)  # fmt: skip
def test_second_streams(make, at, name, options, other, who, kind):
    """Also when this very step would not have used them."""
    with pytest.raises(TypeError, match="^" + sentence(who, kind)):
        stepped(make, at, name, options, {"main": HARD, other: KINDS[kind][0]})


@kinds
def test_functions(kind):
    labels, rows = KINDS[kind][0], torch.rand(SIZE, 4)
    weight, counts = torch.rand(3, 4), torch.tensor([9, 4, 2])
    calls = {
        "ClassCovariance": lambda labels: ClassCovariance(3, 4).update(rows, labels),
        "balanced_contrastive": lambda labels: balanced_contrastive(rows, labels, weight),
        "remix_share": lambda labels: remix_share(counts, labels, HARD, 0.3),
    }
    for who, call in calls.items():
        call(HARD)
        with pytest.raises(TypeError, match="^" + sentence(who, kind)):
            call(labels)
    with pytest.raises(TypeError, match="^" + sentence("remix_share", kind)):
        remix_share(counts, HARD, labels, 0.3)


def test_lists_bits_and_matrices_of_integers():
    for labels, words in (
        ([0, 1], "got a list; take labels.argmax"), (HARD > 0, r"got torch.bool of shape \(6,\)"),
        (HARD[:, None], r"got torch.int64 of shape \(6, 1\); take labels.argmax\(1\)"),
    ):  # fmt: skip
        with pytest.raises(TypeError, match=words):
            remix_share(torch.tensor([9, 4, 2]), labels, HARD, 0.3)


def test_rectified_labels_are_soft_ones():
    distances, counts = torch.rand(SIZE, 3), torch.tensor([9, 4, 2])
    assert rectify(SOFT, distances, counts, 1.0, 2).shape == (SIZE, 3)
    for labels, words in (
        (HARD, r"got torch.int64 of shape \(6,\)"), (SOFT.long(), r"got torch.int64 of shape \(6, 3\)"),
        (HARD.float(), r"got torch.float32 of shape \(6,\)"),
    ):  # fmt: skip
        with pytest.raises(TypeError, match=r"^rectify needs soft labels, \(N, K\) of a floating point type; " + words):
            rectify(labels, distances, counts, 1.0, 2)
