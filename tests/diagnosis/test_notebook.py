"""What a notebook shows, and data frames."""

import pytest

from spectail.diagnosis import analyse, compare, make_predictions
from spectail.training.loop import RunResults

NAMES = ["<b>cat</b>", "dog", "otter"]


@pytest.fixture(scope="module")
def analyses():
    labels = [0] * 8 + [1] * 6 + [2] * 4
    first = make_predictions(
        labels, [0] * 8 + [1] * 6 + [1] * 4, class_names=NAMES, class_counts=[500, 60, 5], name="ce"
    )
    second = make_predictions(labels, labels, class_names=NAMES, class_counts=[500, 60, 5], name="ours")
    return [analyse(first), analyse(second)]


def test_an_analysis(analyses):
    shown = analyses[0]._repr_html_()
    assert shown.count("<table>") == 2
    assert "&lt;b&gt;cat&lt;/b&gt;" in shown
    assert "<b>cat</b>" not in shown
    assert "<td>worst class, otter</td><td>0.0</td>" in shown
    frame = analyses[0].to_pandas()
    assert frame.loc["otter", "accuracy"] == 0
    assert frame.loc["otter", "taken_for"] == ["dog"]
    assert frame["train_count"].tolist() == [500, 60, 5]


def test_a_comparison(analyses):
    found = compare(analyses, draws=50)
    assert "ours beats ce: " in found._repr_html_()
    assert "lowest 10 % of classes" in found._repr_html_()
    assert found.to_pandas().loc[("ours", "tail"), "value"] == 100


def test_results_of_a_run():
    results = RunResults(method="ce", dataset="glyphs-lt", overall=50.04, tail=None, worst_test=1.0, per_class=[1.0])
    assert "<td>overall</td><td>50.0</td>" in results._repr_html_()
    assert "<td>worst class</td><td>1.0</td>" in results._repr_html_()
    assert results.to_pandas()["method"] == "ce"
    assert "per_class" not in results.to_pandas()
