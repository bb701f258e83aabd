"""Two ranks must train as one process does with the whole batch.

The ranks run once; then one process runs the same batches.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from distributed_worker import train_all
from rank_pool import Ranks

SAVED = ("saved", "saved-classwise", "saved-worst")
REFUSED = ("nan", "nan-worst", "label", "shape")
WORST = (
    *("worst", "worst-batch", "worst-mixed", "worst-soft", "worst-ignored", "worst-many"),
    "ignored-everywhere-mixed",
    *("fixed-worst", "fixed-worst-mixed"),
)
CASES = (
    *("batch", "classwise", "ragged", "ragged-classwise", "ragged-mixed", "separate", "separate-classwise"),
    *("mixed", "mixed-classwise", "mixed-one-rank", "soft", "soft-classwise", "soft-bfloat16"),
    *("ignored", "ignored-mixed", "ignored-rank", "ignored-everywhere", "accumulated", "accumulated-classwise", "live"),
    *("first", "first-classwise", "first-ignored", "squared", "squared-classwise", "many", "one-rank", *SAVED),
    *("fixed", "fixed-classwise", "fixed-ragged", "fixed-separate", "fixed-mixed", "fixed-soft", "fixed-ignored"),
    *("fixed-ignored-rank", "fixed-ignored-everywhere", "fixed-first", "fixed-accumulated", "fixed-many"),
    *WORST,
)


class Results(NamedTuple):
    ranks: tuple[dict[str, Any], dict[str, Any]]
    single: dict[str, Any]

    def of(self, case: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        return self.ranks[0][case], self.ranks[1][case], self.single[case]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, ranks: Ranks) -> Results:
    folder = tmp_path_factory.mktemp("distributed")
    first, second = ranks(train_all, folder)
    single = train_all(folder)
    assert set(single) == {*CASES, *REFUSED, "alone"}
    return Results((first, second), single)


def gap(a: Any, b: Any) -> float:
    """Largest difference; NaN if either has one, and no comparison with NaN holds."""
    a, b = (torch.as_tensor(value, dtype=torch.float64) for value in (a, b))
    return float((a - b).abs().max())


@pytest.mark.parametrize("case", CASES)
def test_parameters_equal_those_of_one_process(results: Results, case: str) -> None:
    first, second, single = results.of(case)
    difference = gap(first["parameters"], single["parameters"])
    print(f"{case}: parameters differ by {difference:.1e}")
    assert difference <= (1e-5 if case == "live" else 1e-6)
    assert torch.equal(first["parameters"], second["parameters"])


@pytest.mark.parametrize("case", CASES)
def test_every_rank_holds_the_history_of_one_process(results: Results, case: str) -> None:
    first, second, single = results.of(case)
    assert torch.equal(first["confusion"], second["confusion"])
    assert gap(first["confusion"], single["confusion"]) <= (1e-6 if case == "live" else 1e-10)
    assert first["step"] == second["step"] == single["step"]
    assert float(single["confusion"].sum()) > 0


@pytest.mark.parametrize("case", CASES)
def test_the_value_of_car_needs_no_averaging(results: Results, case: str) -> None:
    first, second, single = results.of(case)
    assert first["car"] == second["car"]
    last = len(single["car"])  # a run from a checkpoint has fewer steps
    assert gap(first["car"][-last:], single["car"]) <= (1e-5 if case == "live" else 1e-9)


@pytest.mark.parametrize("case", CASES)
def test_base_losses_of_the_ranks_average_to_that_of_one_process(results: Results, case: str) -> None:
    first, second, single = results.of(case)
    last = len(single["base"])
    mean = torch.tensor([first["base"], second["base"]], dtype=torch.float64).mean(0)
    assert gap(mean[-last:], single["base"]) <= (1e-5 if case == "live" else 1e-9)


@pytest.mark.parametrize("case", WORST)
def test_class_errors_have_no_search_that_could_differ(results: Results, case: str) -> None:
    first, _, single = results.of(case)
    for what in ("parameters", "confusion", "car"):
        assert gap(first[what], single[what]) <= 1e-12, what
    if case == "worst-many":  # and the ranks tell each other K numbers, no columns
        assert max(first["sizes"]) <= 500 + 2


@pytest.mark.parametrize("case", REFUSED)
def test_every_rank_raises_when_one_refuses_its_batch(results: Results, case: str) -> None:
    reason = {"nan": "NaN", "label": "labels must lie in", "shape": "21 classes"}[case.removesuffix("-worst")]
    good, bad = results.ranks[0][case]["errors"]
    assert bad.startswith("ValueError")
    assert reason in bad
    assert good.startswith("RuntimeError: another rank refused its batch")


@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_batch_changes_no_state(results: Results, case: str) -> None:
    assert all(rank[case]["unchanged"] for rank in results.ranks)


@pytest.mark.parametrize("case", REFUSED)
def test_training_goes_on_after_a_refused_batch(results: Results, case: str) -> None:
    first, second, single = results.of(case)
    assert gap(first["parameters"], single["parameters"]) <= 1e-6
    assert torch.equal(first["confusion"], second["confusion"])
    assert gap(first["confusion"], single["confusion"]) <= 1e-10
    assert first["step"] == second["step"] == single["step"]


def test_one_rank_may_call_car_alone(results: Results) -> None:
    first, second, single = results.of("one-rank")
    assert gap(first["probe"], single["probe"]) <= 1e-10  # the value and the gradient, both of the local batch
    assert first["unchanged"]
    assert "probe" not in second
    assert first["sizes"] == second["sizes"]


def test_a_checkpoint_of_rank_0_continues_on_one_process(results: Results) -> None:
    for case in SAVED:
        first, _, single = results.of(case)
        assert len(single["car"]) == len(first["car"]) // 2  # it did start half way
        assert gap(first["car"][-len(single["car"]) :], single["car"]) <= 1e-12
        assert gap(first["confusion"], single["confusion"]) <= 1e-12
        assert gap(first["parameters"], single["parameters"]) <= 1e-12


@pytest.mark.parametrize(("case", "most"), [("many", 32), ("fixed-many", 2 * 32)])
def test_ranks_exchange_columns_and_never_the_matrix(results: Results, case: str, most: int) -> None:
    first, second, _ = results.of(case)
    assert first["sizes"] == second["sizes"]
    assert 0 < max(first["sizes"]) <= most * 500 < 500 * 500


def test_a_batch_refused_on_the_fixed_path_is_empty_for_the_others(results: Results) -> None:
    for rank in results.ranks:
        for found in (rank["refused later"], rank["refused later, worst"]):
            good, bad = found["errors"]
            assert good == "value 0.0, gradient 0.0"
            assert "21 classes" in bad
            assert found["unchanged"]


def test_a_larger_batch_on_the_fixed_path_warns_and_keeps_the_ranks_alike(results: Results) -> None:
    first, second = (rank["more labels"] for rank in results.ranks)
    assert all("Begin with the largest batch" in rank["warned"][0] for rank in (first, second))
    assert torch.equal(first["confusion"], second["confusion"])
    assert first["confusion"].any(0).sum() == 8  # two ranks with twice two labels


def test_without_sync_a_rank_works_alone(results: Results) -> None:
    """Also shows that the comparisons above can tell."""
    first, second, single = results.of("alone")
    assert first["sizes"] == second["sizes"] == []
    assert gap(first["confusion"], second["confusion"]) > 1e-3
    assert gap(first["parameters"], single["parameters"]) > 1e-3


def test_a_loss_forgets_the_ranks_when_their_job_ends(results: Results) -> None:
    for rank in results.ranks:
        assert rank["after the job"]["found"] == pytest.approx(rank["after the job"]["right"], rel=1e-12)
