"""Two processes in every framework train as one process does with the whole batch."""

from pathlib import Path

import pytest
import torch
from jobs import TORCHRUN, launch
from ranks import PARTS, problem
from toys import COUNTS, MICRO, STEPS, criterion, network, plain_loop, samples, weights

from spectail.metrics import Metrics

CASES = ("plain", "accelerate", "lightning", "hf-True-False", "hf-False-False", "hf-True-True", "hf-False-True")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    launch(*TORCHRUN, f"--log-dir={folder}", Path(__file__).with_name("ranks.py"), folder, seconds=420)
    return [torch.load(folder / f"rank{rank}.pt") for rank in range(2)]


def alone(ignored=False):
    """The plain loop in this process; ignored samples are left out."""
    inputs, labels = problem(ignored)
    pairs = [(x[y != -100], y[y != -100]) for x, y in zip(inputs.split(MICRO), labels.split(MICRO), strict=True)]
    loss = criterion()
    groups = [pairs[start : start + PARTS] for start in range(0, len(pairs), PARTS)]
    assert len(groups) == STEPS
    return plain_loop(network(), loss, groups), loss


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_equal_one_process(ranks, case):
    model, loss = alone(ignored=case.endswith(("True-True", "False-True")))
    difference = float((ranks[0][case]["weights"] - weights(model)).abs().max())
    print(f"two ranks, {case}: {difference:.1e}")
    assert difference <= 1e-6
    assert torch.equal(ranks[0][case]["weights"], ranks[1][case]["weights"])
    for name in loss.state_dict():
        assert torch.equal(ranks[0][case]["loss"][name], ranks[1][case]["loss"][name]), name
    rows = ranks[0][case]["loss"]["car.history.rows"] * ranks[0][case]["loss"]["car.history.factor"]
    assert float((rows - loss.car.history.dense()).abs().max()) <= 1e-8


def test_lightning_logs_the_validation_set_of_all_ranks(ranks):
    model, _ = alone()
    metrics = Metrics(COUNTS)
    inputs, labels = problem()
    with torch.no_grad():
        metrics.update(model(inputs), labels)
    found = metrics.compute()
    assert ranks[0]["log"]["val/worst"] == pytest.approx(found["worst_test"], abs=1e-4)
    assert ranks[0]["log"]["val/spectral_norm"] == pytest.approx(found["spectral_norm"], rel=1e-5)


def test_ddp_does_not_broadcast_the_history(ranks):
    assert ranks[0]["broadcast"] == 1  # the step count of CARLoss; CAR has a dozen more


def test_the_metric_counts_the_samples_of_all_ranks(ranks):
    scores, labels = torch.randn(40, len(COUNTS), generator=torch.Generator().manual_seed(1)), samples(40)[1]
    metrics = Metrics(COUNTS)
    metrics.update(scores, labels)
    found = metrics.compute()
    assert ranks[0]["metric"]["overall"] == pytest.approx(found["overall"] / 100, abs=1e-6)
    assert ranks[0]["metric"]["worst"] == pytest.approx(found["worst_test"] / 100, abs=1e-6)
    assert repr(ranks[0]["metric"]) == repr(ranks[1]["metric"])  # as text: NaN equals nothing
