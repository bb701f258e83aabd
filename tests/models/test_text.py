"""Class vectors from class names, with a stand-in for open_clip."""

import sys
import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from spectail.models.text import class_texts


class Clip(nn.Module):
    """Texts of 4 numbers; features of 6 are projected to them."""

    def __init__(self):
        super().__init__()
        self.visual = nn.Module()
        self.visual.proj = nn.Parameter(torch.arange(24.0).view(6, 4))

    def encode_text(self, tokens):
        return tokens


@pytest.fixture
def open_clip(monkeypatch, tmp_path):
    seen = []

    def tokenizer(prompts):
        seen.extend(prompts)
        return torch.tensor([[len(prompt), 1, 2, 3] for prompt in prompts])

    module = types.SimpleNamespace(
        list_models=lambda: ["tiny"], list_pretrained_tags_by_model=lambda name: ["far"], seen=seen,
        create_model=lambda name, pretrained: Clip(), get_tokenizer=lambda name: tokenizer,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "open_clip", module)
    (tmp_path / "clip.pt").write_bytes(b"")
    return module


def test_texts_go_back_through_the_projection(open_clip, tmp_path):
    found = class_texts(["red_fox", "cat"], f"tiny:{tmp_path / 'clip.pt'}", 6)
    assert open_clip.seen == ["a photo of a red fox.", "a photo of a cat."]
    for row, prompt in zip(found, open_clip.seen, strict=True):
        text = F.normalize(torch.tensor([len(prompt), 1.0, 2.0, 3.0]), dim=0)
        projected = torch.stack([Clip().visual.proj[j] @ text for j in range(6)])
        torch.testing.assert_close(row, projected / projected.norm())
    assert class_texts(["a", "b"], "tiny:far", 4).shape == (2, 4)  # the common space itself


@pytest.mark.parametrize(
    ("names", "weights", "width", "message"),
    [
        (["0", "1"], "tiny:far", 4, "needs names of the classes, and they are numbers such as '0'"),
        (["a", "b"], "tiny:nowhere.pt", 4, "there is no file 'nowhere.pt'"),
        (["a", "b"], "huge:far", 4, "no architecture 'huge'"),
        (["a", "b"], "tiny:far", 5, "its texts have 4 numbers and features of the network 5"),
    ],
)
def test_bad_input(open_clip, names, weights, width, message):
    with pytest.raises(ValueError, match=message):
        class_texts(names, weights, width)


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(ValueError, match="needs the package open_clip_torch"):
        class_texts(["a", "b"], "tiny:far", 4)
