"""How a run uses its device: on a CPU nothing of it changes what is learned, and what cannot be done is refused."""

import json
import platform
import subprocess

import numpy as np
import pytest
import torch
from forked import PYTHON
from safetensors.torch import load_file
from torch import nn
from training.runs import Stop, StopAt, settings

from spectail.testing.hardware import compiling_by
from spectail.training.build import evenly
from spectail.training.config import OptimConfig, check_config
from spectail.training.config_io import read_yaml
from spectail.training.hardware import check_device, set_products, with_precision
from spectail.training.loop import train
from spectail.training.optim import make_optimizer


@pytest.fixture
def plain(tmp_path):
    return train(settings(tmp_path / "plain"))


def test_auto_is_float32_on_a_cpu_and_the_folder_says_so(tmp_path, plain):
    config = settings(tmp_path / "run")
    assert config.optim.precision == "auto"
    train(config)
    assert read_yaml(tmp_path / "run" / "config.yaml").optim.precision == "no"
    again = train(settings(tmp_path / "run", optim__precision="no"), resume=True)  # the same settings
    assert again["nll"] == plain["nll"]


def test_auto_is_bf16_on_a_gpu_that_has_it(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("spectail.training.config.has_gpu", lambda: True)
    for has, expected in ((True, "bf16"), (False, "no")):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda has=has: has)
        assert with_precision(settings(tmp_path, device="auto")).optim.precision == expected
        assert with_precision(settings(tmp_path, device="cuda:1")).optim.precision == expected
        assert with_precision(settings(tmp_path, device="cpu")).optim.precision == "no"
        assert with_precision(settings(tmp_path, device="auto", optim__precision="tf32")).optim.precision == "tf32"


def test_float32_is_whole_float32():
    try:
        for precision, expected in (("no", ("highest", False)), ("tf32", ("high", True)), ("bf16", ("high", True))):
            set_products(precision)
            assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == expected
    finally:
        set_products("no")


def test_channels_last_learns_the_same_and_resumes_bit_for_bit(tmp_path, plain):
    changes = {"model__model": "small-cnn"}
    train(settings(tmp_path / "whole", **changes))
    with pytest.raises(Stop):
        train(settings(tmp_path / "cut", checkpoint_every=2, **changes), reporter=StopAt(steps=3))
    train(settings(tmp_path / "cut", checkpoint_every=2, **changes), resume=True)
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "cut")]
    assert files[0] == files[1]
    # steps so small that rounding, which differs between the layouts, does not grow from one to the next
    slow = {"model__model": "small-cnn", "optim__lr": 1e-5}
    usual = train(settings(tmp_path / "usual", hardware__channels_last=False, **slow))
    other = train(settings(tmp_path / "other", **slow))
    assert other["nll"] == pytest.approx(usual["nll"], rel=1e-4)


def test_activations_computed_again_give_the_same_gradients(tmp_path):
    model = {"model__model": "test_vit", "model__img_size": 32}
    usual = train(settings(tmp_path / "usual", **model))
    again = train(settings(tmp_path / "again", hardware__grad_checkpointing=True, **model))
    assert again["nll"] == pytest.approx(usual["nll"], rel=1e-5)
    with pytest.raises(ValueError, match=r"--grad-checkpointing: a .+ cannot do it; leave it out"):
        train(settings(tmp_path / "none", hardware__grad_checkpointing=True, model__model="small-cnn"))


def test_a_compiled_run_leaves_the_files_of_any_other(tmp_path, plain):
    with compiling_by("aot_eager"):
        train(settings(tmp_path / "run", hardware__compile=True))
    files = [load_file(tmp_path / name / "model.safetensors") for name in ("plain", "run")]
    assert [*files[0]] == [*files[1]]


def test_compile_is_refused_for_features(tmp_path):
    with pytest.raises(ValueError, match="--compile is for a backbone that is trained"):
        check_config(settings(tmp_path / "run", probe=True, hardware__compile=True))


@pytest.mark.parametrize("precision", ["fp16", "tf32"])
def test_what_needs_a_gpu_is_refused_on_a_cpu(precision, tmp_path):
    with pytest.raises(ValueError, match=f"--precision {precision} needs a GPU"):
        check_config(settings(tmp_path / "run", optim__precision=precision))
    with pytest.raises(ValueError, match="--sync-batchnorm needs GPUs"):
        check_config(settings(tmp_path / "run", hardware__sync_batchnorm=True))


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("gpu", "--device must be auto, cpu, cuda, cuda:N or mps; got 'gpu'"),
        ("cuda:x", "got 'cuda:x'"),
        ("cpu:0", "got 'cpu:0'"),
        ("cuda:7", "is not available here"),
    ],
)
def test_devices(device, words, monkeypatch):
    with pytest.raises(ValueError, match=words):
        check_device(device)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    check_device("cuda:1")
    with pytest.raises(ValueError, match="there are 2 GPUs"):
        check_device("cuda:2")
    with pytest.raises(ValueError, match="is one GPU, and 4 processes take one each"):
        check_device("cuda:1", 4)


def test_decay_on_all_parameters():
    layer = nn.Linear(3, 2)
    usual = make_optimizer(layer, OptimConfig(weight_decay=0.1))
    assert [group["weight_decay"] for group in usual.param_groups] == [0.1, 0.0]
    every = make_optimizer(layer, OptimConfig(weight_decay=0.1, decay_all=True))
    assert [(len(group["params"]), group["weight_decay"]) for group in every.param_groups] == [(2, 0.1)]


def test_fused_adamw_is_adamw():
    moved = []
    for fused in (False, True):
        torch.manual_seed(0)
        layer = nn.Linear(5, 3)
        optimizer = make_optimizer(layer, OptimConfig(), fused=fused)
        for _ in range(5):
            layer(torch.ones(2, 5)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        moved.append(layer.weight.detach())
    torch.testing.assert_close(*moved)


def test_checkpoints_every_few_epochs(tmp_path):
    config = settings(tmp_path / "run", optim__epochs=5, checkpoint_epochs=2, keep_checkpoints=9)
    train(config)
    steps = sorted(int(path.name.partition("-")[2]) for path in (tmp_path / "run" / "checkpoints").glob("step-*"))
    assert steps == [10, 20, 25]  # five steps an epoch; the last one always
    with pytest.raises(Stop):
        train(settings(tmp_path / "cut", optim__epochs=5, checkpoint_epochs=2), reporter=StopAt(epochs=3))
    train(settings(tmp_path / "cut", optim__epochs=5, checkpoint_epochs=2), resume=True)
    one, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("run", "cut"))
    assert one == other


def test_watching_the_test_set_is_said_and_changes_nothing(tmp_path, plain):
    watched = train(settings(tmp_path / "run", watch_test=0.25))
    assert watched["nll"] == plain["nll"]
    assert watched["disclosures"]["watch_test"] == "25% of the test set was watched in training"
    assert "watch_test" not in plain["disclosures"]
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert all(0 <= line["watched_test_overall"] <= 100 for line in lines)


def test_places_are_spread_evenly():
    assert evenly(10, 0.3).tolist() == [0, 4, 9]
    assert evenly(10, 1.0).tolist() == list(range(10))
    assert evenly(7, 0.001).tolist() == [0]
    assert np.diff(evenly(1000, 0.25)).max() <= 5


FAULTS = """
import resource
import sys
import torch
from spectail.training.hardware import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
for turn in range(13):
    if turn == 3:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.empty(2**24).fill_(1.0)  # 64 MiB
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="about glibc's allocator")
def test_freed_memory_is_used_again():
    """By default a large tensor takes all of its pages from the system in every turn, here in the first turns only."""

    def faults(way):
        return int(subprocess.run([PYTHON, "-c", FAULTS, way], capture_output=True, text=True, check=True).stdout)

    assert 3 * faults("kept") < faults("system")
