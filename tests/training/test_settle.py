"""What a run's data and network decide about its settings."""

import pytest

from spectail.training.config_io import from_dict
from spectail.training.settle import settled


@pytest.mark.parametrize(
    ("model", "more", "pixels"),
    [
        ({"model": "tf_efficientnet_lite0", "pretrained": True}, {}, 224),
        ({"model": "tf_efficientnet_lite0", "init": "weights.safetensors"}, {}, 224),
        ({"model": "tf_efficientnet_lite0", "init": "weights.safetensors", "img_size": 64}, {}, 64),
        ({"model": "tf_efficientnet_lite0", "init": "weights.safetensors"}, {"transform": "cifar"}, None),
        ({"model": "tf_efficientnet_lite0", "init": "weights.safetensors"}, {"probe": False}, None),
        ({"model": "tf_efficientnet_lite0", "init": "RUN"}, {}, None),  # a run knows these data at their own size
        ({"model": "tf_efficientnet_lite0"}, {}, None),
        ({"model": "resnet32", "init": "weights.safetensors"}, {}, None),
    ],
)
def test_a_probe_shows_images_to_a_pretrained_network_at_its_own_size(tmp_path, model, more, pixels):
    (tmp_path / "run").mkdir()
    if model.get("init") == "RUN":
        model = model | {"init": str(tmp_path / "run")}
    config = from_dict({"probe": True, "data": {"dataset": "cifar100-lt"}, "model": model} | more)
    assert settled(config).model.img_size == pixels
    assert settled(settled(config)) == settled(config)
