"""Pre-trained weights without a network: one question, one sentence, and none where a file is given."""

import pytest
import timm
from safetensors.torch import save_file

from spectail._utils.errors import MissingWeights
from spectail.models import ModelConfig, build_model, hub

NAME = "resnet10t"


@pytest.fixture
def asked(monkeypatch):
    """An offline machine that counts what the hub is asked for."""
    names = []
    monkeypatch.setattr(hub, "answers", names.append)
    monkeypatch.setattr(hub, "cached_file", lambda name: None)
    return names


def test_offline_is_one_question_and_one_sentence(asked):
    with pytest.raises(MissingWeights) as caught:
        build_model(ModelConfig(NAME, pretrained=True), 3, "linear")
    assert str(caught.value) == (
        "the weights of resnet10t are not on this machine, and the hub did not answer within 10 seconds. "
        "Fetch model.safetensors of timm/resnet10t.c3_in1k elsewhere and pass it with --init FILE."
    )
    assert asked == [NAME]


def test_a_file_takes_the_place_of_the_hub_and_cached_weights_need_no_network(asked, monkeypatch, tmp_path):
    file = tmp_path / "model.safetensors"
    first, _ = build_model(ModelConfig(NAME), 3, "linear")
    state = first.backbone.state_dict()
    save_file(state, file)
    second, _ = build_model(ModelConfig(NAME, pretrained=True, init=file), 3, "linear")
    assert all(value.equal(state[key]) for key, value in second.backbone.state_dict().items())
    save_file(timm.create_model(NAME).state_dict(), file)  # with its classifier, as the hub has it
    monkeypatch.setattr(hub, "cached_file", lambda name: file)
    build_model(ModelConfig(NAME, pretrained=True), 3, "linear")
    assert asked == []
