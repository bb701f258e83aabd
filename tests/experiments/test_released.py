"""What stands beside the paper's numbers: what its released code runs, and the rows that cannot be right."""

import pytest

from spectail.experiments.catalog import find_experiment
from spectail.experiments.cells import printed_cell
from spectail.experiments.planning import make_plan
from spectail.experiments.published import printed, value_of
from spectail.experiments.released import impossible, remarks, same_row
from spectail.experiments.scales import Overrides
from spectail.experiments.tables import as_csv, as_table, from_csv, make_rows

GROUPS = ("overall", "head", "medium", "tail")


def with_groups():
    places = dict.fromkeys(entry.place for entry in printed())
    return [place for place in places if None not in [value_of(place, metric) for metric in GROUPS]]


def notes_of(method, dataset="cifar100-lt", setting="scratch"):
    return " | ".join(
        remarks(printed_cell((setting, dataset, 100.0 if dataset != "inat2018" else None, "vit_small", method)))
    )


def test_eleven_of_96_rows_are_impossible():
    """Counted by hand in the paper's source: all on iNaturalist, CAR + ConCutMix fine-tuned among them."""
    places = with_groups()
    found = [place for place in places if impossible(place)]
    assert (len(places), len(found)) == (96, 11)
    assert {place[1] for place in found} == {"inat2018"}
    assert ("pretrained", "inat2018", None, "vit_small", "CAR + ConCutMix") in found
    assert "impossible" in notes_of("CAR + ConCutMix", "inat2018", "pretrained")
    assert "impossible" not in notes_of("CAR + ConCutMix", "cifar100-lt", "pretrained")


def test_bbn_and_los_have_one_row():
    twins = [place for place in with_groups() if same_row(place)]
    assert [(place[1], place[-1]) for place in twins] == [("cifar100-lt", "BBN"), ("cifar100-lt", "LOS")]
    assert "the same numbers as LOS" in notes_of("BBN")


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("BALMS", "no meta sampler and no second stage"),
        ("LDAM-DRW", "no deferred weights"),
        ("WB", "one stage of AdamW"),
        ("CB", "beta 0.999"),
        ("GML", "10 epochs"),
        *((name, "not in the released code") for name in ("Focal", "ReMix", "CMO", "ConCutMix", "MetaSAug", "SAFA",
                                                           "BBN", "LOS", "CAR + CMO", "CAR + SAFA")),
        ("CE", "best epoch on the test data"),
    ],
)  # fmt: skip
def test_rows_say_what_the_released_code_runs(method, words):
    assert words in notes_of(method)


def test_car_itself_needs_no_remark():
    assert not notes_of("CAR")


def test_a_table_with_published_numbers_prints_them():
    experiment = find_experiment("lt-main")
    plan = make_plan(experiment, experiment.cells, "paper", [0], Overrides())
    rows, _ = make_rows(plan, [])
    table = as_table(plan, rows)
    assert "the released code runs Balanced Softmax alone" in table.notes
    assert "impossible, overall lies outside" in table.notes
    assert [row.notes for row in from_csv(as_csv(plan, rows))] == [row.notes for row in rows]
    own = find_experiment("combinations")
    cells = [cell for cell in own.cells if cell.dataset == "glyphs-lt"]
    rows, _ = make_rows(make_plan(own, cells, "quick", [0], Overrides()), [])
    assert not any(note.startswith("published:") for row in rows for note in row.notes)
