"""What is on people's disks already: the keys of everything that is saved, so that a change of the code keeps them.

A key that is added on purpose is added here; one that is taken away makes old runs unreadable.
"""

import json

import torch
from training.runs import settings

from spectail import CAR, CARLoss
from spectail.training.loop import train

HISTORY = ["basis", "classes", "factor", "images", "rows", "seen", "steps", "sums", "weights"]


def test_keys_of_the_regulariser():
    assert sorted(CAR([3, 2]).state_dict()) == [f"history.{name}" for name in HISTORY]
    assert sorted(CARLoss([3, 2]).state_dict()) == [*(f"car.history.{name}" for name in HISTORY), "step"]


CHECKPOINT = "average car generator index learner loaders metrics optimizer progress scaler schedule"
PROGRESS = "best best_epoch epoch lines phases seconds stage steps"
LOADER = "epoch order position seed"
RANK = "counted random sums"
RESULTS = """adjustment
    balanced bottom_10pct bottom_20pct brier car choices dataset disclosures ece epochs geometric_mean groups
    harmonic_mean head identity imbalance late_gain line macro_f1 medium method model nll options overall per_class
    per_class_images phases probe seconds seed selection spectral_norm stage1 steps tail train_overall tune val
    worst_ratio worst_test worst_test_class worst_test_interval worst_test_next worst_train worst_train_class
    zero_classes"""
MANIFEST = "checks classes dataset files format groups identity notes options ranks rule splits statistics version"
LINE = "car data_seconds epoch images_per_second loss lr spectral_norm stage step"
FILES = """.run.lock checkpoints config.yaml digests.json manifest.json metrics.jsonl model.safetensors predictions.npz
    results.json"""


def keys(content):
    return " ".join(sorted(content))


def test_keys_of_a_run(tmp_path):
    config = settings(tmp_path / "run", car__enabled=True, checkpoint_every=1)
    train(config)
    assert keys(path.name for path in config.output.iterdir()) == " ".join(FILES.split())
    assert keys(json.loads((config.output / "results.json").read_text())) == " ".join(RESULTS.split())
    assert keys(json.loads((config.output / "manifest.json").read_text())) == MANIFEST
    assert {keys(json.loads(line)) for line in (config.output / "metrics.jsonl").read_text().splitlines()} == {LINE}
    folder = min((config.output / "checkpoints").iterdir())
    state = torch.load(folder / "state.pt", weights_only=True)
    assert keys(state) == CHECKPOINT
    assert keys(state["progress"]) == PROGRESS
    assert keys(state["loaders"]["main"]) == LOADER
    assert keys(state["car"]) == " ".join(f"car.history.{name}" for name in HISTORY)
    assert {name.rpartition(".")[0] for name in state["learner"]} >= {"model.head", "model.backbone.layers.2"}
    assert keys(torch.load(folder / "rank-0.pt", weights_only=True)) == RANK
