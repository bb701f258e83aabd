"""Two processes with half batches are one process with whole ones; resuming and the launchers work on two as well."""

import numpy as np
import pytest
from forked import python, torchrun
from safetensors.torch import load_file
from training.rank_runs import train_all
from training.runs import FLAGS, assert_same, metrics, predictions, results, settings

from spectail.data import load
from spectail.training.car_term import CARTerm
from spectail.training.loop import train

CAR = {"method": "car"}
RUNS = {
    "ce": {},
    "ragged": {"optim__batch_size": 10},  # 68 = 6 * 10 + 8
    "uneven": {"optim__batch_size": 20, "data__imbalance": 10},  # an odd last batch: the ranks hold different numbers
    "car": CAR,
    "car-uneven": CAR | {"optim__batch_size": 20, "data__imbalance": 10},
    "classwise": CAR | {"car__preset": "classwise"},
    "balanced": {"method": "balanced-softmax", "optim__clip": 0.5, "optim__ema": 0.7},
    "accumulation": {"optim__accumulation": 2, "optim__batch_size": 32},
    "decoupled": {"method": "decoupled", "car__enabled": True},
    "probe": {"probe": True, "method": "car"},
    "lora": {"tuning__tune": "lora", "tuning__head_init": "random", "method": "car"},
}
# Transformed one by one: the draws for a batch in memory follow from its size.
SGD = {"optim__optimizer": "sgd", "optim__lr": 0.1, "transform": "cifar-strong"}
NORM = {"model__model": "tiny-norm"}
DROPOUT = CAR | {"model__model": "tiny-dropout", "optim__ema": 0.8}
# On the path of an accelerator, where nothing may wait. MetaSAug is not here: how many classes the batch of all ranks
# has, which decides about shapes, a rank hears through the device.
GUARDED = {
    "balanced": RUNS["balanced"],
    "accumulation": RUNS["accumulation"],
    "late": {"method": "ldam-drw", "model__model": "tiny-norm"},
    "gml": {"method": "gml", "options": {"stage2_batch_size": 16, "stage2_epochs": 1}},
}


@pytest.fixture(scope="module")
def two(tmp_path_factory, ranks):
    """All runs on two processes."""
    folder = tmp_path_factory.mktemp("two")
    jobs = [(str(folder / name), changes) for name, changes in RUNS.items()]
    jobs += [(str(folder / f"{name}-guarded"), changes | {"guarded": True}) for name, changes in GUARDED.items()]
    jobs += [(str(folder / name), changes) for name, changes in GUARDED.items() if name not in RUNS]
    jobs += [(str(folder / "norm"), NORM), (str(folder / "norm-ema"), NORM | {"optim__ema": 0.8})]
    jobs += [
        (str(folder / "whole"), DROPOUT),
        (str(folder / "cut"), DROPOUT | {"checkpoint_every": 1, "stop": 4}),
        (str(folder / "cut"), DROPOUT | {"checkpoint_every": 1, "resume": True}),
    ]
    jobs += [(str(folder / "handed-over"), CAR | {"checkpoint_every": 1, "stop": 4})]
    jobs += [(str(folder / "signal-inside"), CAR | {"signal": 2})]
    jobs += [(str(folder / "signal-at-end"), CAR | {"signal": 5})]  # last: the processes may lose each other
    ranks(train_all, jobs, SPECTAIL_CACHE=folder / "cache")  # with nobody's features
    return folder


def test_each_process_computes_its_share_of_the_features(two):
    """Two files of each split, which have no image in common and are as large as each other."""
    [folder] = (two / "cache" / "features").iterdir()
    files = [np.load(path)["images"] for path in folder.glob("*.npz")]
    assert len(files) == 4
    assert len(np.concatenate(files)) == len(np.unique(np.concatenate(files)))
    sizes = sorted(map(len, files))
    assert sizes[1] - sizes[0] <= 1
    assert sizes[3] - sizes[2] <= 1


@pytest.mark.parametrize("name", RUNS)
def test_two_processes_are_one(name, two, tmp_path):
    train(settings(tmp_path / "one", **RUNS[name]))
    one, both = load_file(tmp_path / "one" / "model.safetensors"), load_file(two / name / "model.safetensors")
    assert one.keys() == both.keys()
    for key in one:
        np.testing.assert_allclose(both[key], one[key], rtol=1e-4, atol=2e-5, err_msg=key)
    np.testing.assert_allclose(
        predictions(two / name)["logits"], predictions(tmp_path / "one")["logits"], rtol=1e-3, atol=1e-4
    )
    alone, together = results(tmp_path / "one"), results(two / name)
    assert alone.keys() == together.keys()
    assert together["phases"] == alone["phases"]
    assert together["identity"] == alone["identity"]
    assert together["nll"] == pytest.approx(alone["nll"], rel=1e-4)
    assert together["overall"] == pytest.approx(alone["overall"], abs=0.5)


@pytest.mark.parametrize("name", GUARDED)
def test_no_step_of_two_processes_waits(name, two):
    """A wait would have ended the guarded run; its path is another one, its result is not."""
    assert_same(two / name, two / f"{name}-guarded")


def test_uneven_case_is_uneven():
    data = load("glyphs-lt", num_classes=6, max_per_class=24, imbalance=10)
    assert len(data.train) % 20 % 2 == 1


@pytest.mark.parametrize("name", ["ce", "ragged", "uneven", "car"])
def test_logged_figures_are_those_of_all_processes(name, two, tmp_path):
    train(settings(tmp_path / "one", **RUNS[name]))
    for alone, together in zip(metrics(tmp_path / "one"), metrics(two / name), strict=True):
        assert together.keys() == alone.keys()
        for key in alone:
            assert together[key] == (pytest.approx(alone[key], rel=1e-4) if key != "stage" else alone[key]), key


@pytest.mark.parametrize("name", ["norm", "norm-ema"])
def test_every_process_evaluates_the_model_that_is_saved(name, two, tmp_path, shared_cache):
    """Batch norm keeps statistics on each process; the ones that are saved must be the ones that were measured."""
    import torch

    from spectail.training.build import make_pieces
    from spectail.training.reporter import Reporter

    pieces = make_pieces(settings(tmp_path / "unused", **NORM), Reporter())
    pieces.model.load_state_dict(load_file(two / name / "model.safetensors"))
    data = load("glyphs-lt", num_classes=6, max_per_class=24, imbalance=6).test
    from spectail.data.loader import Loader

    with torch.no_grad():
        logits = torch.cat([pieces.model.eval()(batch.images) for batch in Loader(data, pieces.preset, batch_size=256)])
    np.testing.assert_allclose(predictions(two / name)["logits"], logits, rtol=1e-4, atol=1e-5)


def test_resumed_on_two_is_uninterrupted_on_two(two):
    assert_same(two / "whole", two / "cut")
    kept = {path.name for path in (two / "cut" / "checkpoints" / "step-00000010").iterdir()}
    assert kept == {"state.pt", "rank-0.pt", "rank-1.pt", "digests.json"}


def test_a_run_of_two_goes_on_in_one(two, tmp_path):
    train(settings(tmp_path / "one", **CAR))
    train(settings(two / "handed-over", **CAR), resume=True)
    one, both = load_file(tmp_path / "one" / "model.safetensors"), load_file(two / "handed-over" / "model.safetensors")
    for key in one:
        np.testing.assert_allclose(both[key], one[key], rtol=1e-4, atol=2e-5, err_msg=key)
    assert results(two / "handed-over")["phases"] == {"train": 10}


@pytest.mark.parametrize("name", ["signal-inside", "signal-at-end"])
def test_a_signal_to_one_process_stops_both(name, two):
    """At the end of an epoch too: a process that leaves alone lets the other one wait for ever."""
    assert [(two / name / f"left-{rank}").read_text() for rank in (0, 1)] == ["Interrupted"] * 2


def test_accumulation_is_one_batch(tmp_path):
    """Micro-batches of 8 against batches of 16; 68 images, so that the last step has 4 images in one micro-batch."""
    changes = SGD
    train(settings(tmp_path / "one", **changes))
    train(settings(tmp_path / "parts", optim__accumulation=2, **changes))
    one, parts = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "parts"))
    for key in one:
        np.testing.assert_allclose(parts[key], one[key], rtol=1e-4, atol=1e-5, err_msg=key)


def test_accumulation_with_a_ragged_last_group(tmp_path):
    """68 = 2 * 26 + 16: micro-batches of 13, the last group is 13 and 3 images."""
    changes = SGD | {"optim__epochs": 2, "optim__batch_size": 26}
    train(settings(tmp_path / "one", **changes))
    train(settings(tmp_path / "parts", optim__accumulation=2, **changes))
    one, parts = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "parts"))
    for key in one:
        np.testing.assert_allclose(parts[key], one[key], rtol=1e-4, atol=1e-5, err_msg=key)


def test_the_term_of_car_is_averaged_over_the_micro_batches(tmp_path, monkeypatch):
    """CAR itself moves once per micro-batch, so a mean over the images stands in for it."""
    monkeypatch.setattr(CARTerm, "forward", lambda self, outcome, step: outcome.logits.square().mean())
    train(settings(tmp_path / "one", **SGD, **CAR))
    train(settings(tmp_path / "parts", optim__accumulation=2, **SGD, **CAR))
    one, parts = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "parts"))
    for key in one:
        np.testing.assert_allclose(parts[key], one[key], rtol=1e-4, atol=1e-5, err_msg=key)


def test_torchrun_command_line(tmp_path, shared_cache):
    """`torchrun -m spectail train` prints once, and its figures are those of one process."""
    arguments = [*FLAGS, "--car", "--model", "small-vit", "--patch-size", "8", "--epochs", "1"]
    said = torchrun("-m", "spectail", "train", *arguments, "--output", tmp_path / "both", SPECTAIL_CACHE=shared_cache)
    assert said.count("results in") == 1
    from spectail.cli.train import parse

    train(parse([*arguments, "--output", str(tmp_path / "one")])[0])
    one, both = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "both"))
    for key in one:
        np.testing.assert_allclose(both[key], one[key], rtol=1e-3, atol=1e-4, err_msg=key)


def test_accelerate_launch(tmp_path, shared_cache):
    """With --cpu Accelerate starts several processes only under MPI; as for GPUs it does, whatever the device is."""
    said = python(
        "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1",
        "--mixed_precision", "no", "--dynamo_backend", "no", "-m", "spectail", "train", *FLAGS,
        "--epochs", "1", "--quiet", "--output", tmp_path / "run", SPECTAIL_CACHE=shared_cache,
    )  # fmt: skip
    assert results(tmp_path / "run")["phases"] == {"train": 5}
    assert list((tmp_path / "run" / "checkpoints").rglob("rank-1.pt"))
    assert said.count("results in") == 1
