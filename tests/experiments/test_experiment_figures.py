"""What the figures of experiments show, read back from their axes."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix

from spectail.experiments.figures import confusions, diagnostics, sweeps, trade_off
from spectail.experiments.grids import sweeps as sweep_cells
from spectail.experiments.grids import trade_off as trade_off_cells
from spectail.experiments.tables import Figure, Row

CELLS = {cell.label: cell for cell in (*trade_off_cells(), *sweep_cells())}


def row(label, **values):
    """A row of a cell of ours by its label."""
    cell = replace(CELLS[label], setting="pretrained", dataset="cifar100-lt", imbalance=100.0, backbone="vit_small")
    figures = tuple(Figure(name, tuple(found), None) for name, found in values.items())
    return Row(cell, "quick", (0, 1), figures, "model", 12, ())


def point(label, overall, tail, worst=(0.0, 0.0)):
    return row(
        label, overall=(overall, overall + 2), tail=(tail, tail), bottom_10pct=(tail / 2, tail / 2), worst_test=worst
    )


ROWS = [
    point("CE", 40.0, 10.0), point("Balanced Softmax, tau 0.5", 50.0, 20.0),
    point("Balanced Softmax, tau 1", 52.0, 30.0),
    point("car-balanced, tau 0.75", 53.0, 31.0), point("CAR class-wise, alpha 80", 5.0, 0.0),
]  # fmt: skip


def test_a_point_lies_at_the_means_of_its_seeds():
    figure = trade_off(ROWS)
    tail, lowest = figure.axes  # the worst class is 0 for all: no panel
    line = tail.containers[0][0]
    assert list(zip(line.get_xdata(), line.get_ydata(), strict=True)) == [(10.0, 41.0), (20.0, 51.0), (30.0, 53.0)]
    assert "tail" in tail.get_xlabel()
    assert "lowest tenth" in lowest.get_xlabel()


def test_a_ruined_model_leaves_the_frame_and_is_counted():
    figure = trade_off(ROWS, "title")
    assert figure.axes[0].get_ylim()[0] > 7
    assert "1 point below the frame" in figure._suptitle.get_text()
    assert "below" not in trade_off(ROWS[:4], "title")._suptitle.get_text()


def test_what_is_chosen_has_a_ring():
    labels = trade_off(ROWS, marked=["car-balanced, tau 0.75"]).axes[0].get_legend_handles_labels()[1]
    assert "chosen on validation data" in labels
    assert "chosen on validation data" not in trade_off(ROWS).axes[0].get_legend_handles_labels()[1]


def test_worst_classes_that_differ_have_a_panel():
    assert len(trade_off([*ROWS, point("CAR, alpha 2", 45.0, 12.0, (3.0, 5.0))]).axes) == 3


def test_a_panel_for_each_setting_of_a_sweep():
    rows = [row(f"{method}, {setting} {value}", val_balanced=(float(value), float(value)), val_tail=(1.0, 3.0))
            for method in ("CAR", "CAR class-wise")
            for setting, values in {"beta": ("0.7", "0.5", "0.9"), "r0": ("0.05", "0.01", "0.2")}.items()
            for value in values]  # fmt: skip
    figure = sweeps(rows)
    assert [axes.get_xlabel() for axes in figure.axes] == ["beta", "r0"]
    heights = [list(line.get_ydata()) for line in figure.axes[0].lines if len(line.get_ydata()) == 3]
    assert [0.5, 0.7, 0.9] in heights  # in the order of the setting
    assert [2.0, 2.0, 2.0] in heights


def test_the_line_of_the_reference_begins_with_cross_entropy_and_bars_of_two_seeds_are_their_range():
    axes = trade_off(ROWS[:3]).axes[0]
    line = axes.containers[0]
    assert [list(values) for values in line[0].get_data()] == [[10.0, 20.0, 30.0], [41.0, 51.0, 53.0]]
    heights = [segment[:, 1].tolist() for segment in line[2][1].get_segments()]
    assert heights == [[40.0, 42.0], [50.0, 52.0], [52.0, 54.0]]


def test_one_panel_where_the_lowest_classes_say_nothing():
    same = [row(label, overall=(40.0, 41.0), tail=(tail, tail), bottom_10pct=(0.0, 0.0), worst_test=(0.0, 0.0))
            for label, tail in (("CE", 1.0), ("Balanced Softmax, tau 1", 2.0))]  # fmt: skip
    assert len(trade_off(same).axes) == 1


def test_diagnostics_are_lines_over_epochs(tmp_path):
    for seed, gaps in enumerate(([4.0, 2.0, 1.0], [2.0, 2.0, 3.0])):
        (tmp_path / str(seed)).mkdir()
        lines = [json.dumps({"epoch": epoch, "cm_gap": gap}) for epoch, gap in enumerate(gaps)]
        (tmp_path / str(seed) / "metrics.jsonl").write_text("\n".join(lines))
    (axes,) = diagnostics({"CAR": [tmp_path / "0", tmp_path / "1"]}).axes
    assert [3.0, 2.0, 2.0] in [list(line.get_ydata()) for line in axes.lines]
    (tmp_path / "1" / "metrics.jsonl").write_text("")
    with pytest.raises(ValueError, match="no finished run logged"):
        diagnostics({"CE": [tmp_path / "1"]})


def test_nothing_to_draw_is_a_sentence():
    with pytest.raises(ValueError, match="nothing to draw"):
        sweeps([])
    with pytest.raises(ValueError, match="nothing to draw"):
        trade_off([])


def test_confusions_are_the_mean_over_seeds(tmp_path):
    generator, names = np.random.default_rng(0), [f"class {label}" for label in range(6)]
    labels, expected = np.repeat(np.arange(6), 20), []
    for seed in range(3):
        predicted = np.where(generator.random(120) < 0.5, labels, generator.integers(0, 6, 120))
        (tmp_path / str(seed)).mkdir()
        np.savez(tmp_path / str(seed) / "predictions.npz", labels=labels, predicted=predicted, class_names=names)
        expected.append(confusion_matrix(labels, predicted, normalize="true"))
    (axes,) = confusions({"CAR": [tmp_path / str(seed) for seed in range(3)]}).axes
    order = [names.index(tick.get_text()) for tick in axes.get_yticklabels()]
    assert sorted(order) == list(range(6))
    np.testing.assert_allclose(axes.images[0].get_array(), 100 * np.mean(expected, axis=0)[np.ix_(order, order)])
