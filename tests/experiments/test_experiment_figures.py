"""What the figures of experiments show, read back from their axes."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix

from spectail import ClassCounts
from spectail.data.longtail import profile
from spectail.experiments import draw
from spectail.experiments.catalog import find_experiment
from spectail.experiments.cells import Cell
from spectail.experiments.confusion_figure import confusions, spanning
from spectail.experiments.figures import diagnostics, sweeps, trade_off
from spectail.experiments.grids import figures as figure_cells
from spectail.experiments.grids import sweeps as sweep_cells
from spectail.experiments.planning import Slice, make_plan
from spectail.experiments.scales import Overrides
from spectail.experiments.tables import Figure, Row

SWEPT = {cell.label: cell for cell in sweep_cells()}
METHODS = {"CE": "ce", "Balanced Softmax, tau 1": "balanced-softmax"}


def row(label, **values):
    """A row of a cell by its label, which for a cell of the trade-off says all that a figure needs."""
    place = ("pretrained", "cifar100-lt", 100.0, "vit_small")
    cell = Cell(*place, METHODS.get(label, "car"), label, SWEPT[label].changes if label in SWEPT else ())
    cell = replace(cell, method=SWEPT[label].method) if label in SWEPT else cell
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
    assert "lowest 10 %" in lowest.get_xlabel()


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


def drawn(label, tail, overall):
    """A row of two seeds that differ by 2 in overall accuracy, as trained at the second of three shifts."""
    lines = {"tail": (tuple(tail),) * 2, "overall": (tuple(overall), tuple(value + 2 for value in overall))}
    own = row(label, **{name: [line[1] for line in both] for name, both in lines.items()})
    figures = tuple(replace(figure, line=lines[figure.metric]) for figure in own.figures)
    return replace(own, figures=figures, shifts=(-1.0, 0.0, 1.0))


def test_every_run_draws_its_line_and_the_reference_is_bold():
    rows = [drawn("CE", (0, 10, 20), (38, 40, 45)), drawn("Balanced Softmax, tau 1", (10, 20, 30), (40, 50, 47)),
            drawn("CAR, alpha 2", (9, 19, 29), (39, 49, 46)),
            drawn("CAR, alpha 0.5", (5, 15, 25), (39, 45, 2))]  # fmt: skip
    figure = trade_off(rows, "title")
    (axes,) = figure.axes
    lines = {tuple(line.get_xdata()): line for line in axes.lines if line.get_linestyle() == "-"}
    assert list(lines[10, 20, 30].get_ydata()) == [41, 51, 48]
    assert lines[10, 20, 30].get_linewidth() > lines[9, 19, 29].get_linewidth() == lines[5, 15].get_linewidth()
    assert "CAR, alpha 0.5, 2" in axes.get_legend_handles_labels()[1]
    assert "Balanced Softmax, tau 1" in axes.get_legend_handles_labels()[1]
    assert figure._suptitle.get_text() == "title; lines: logits shifted after training"
    points = next(entry for entry in axes.containers if entry.get_label() == "CAR, alpha 0.5, 2")[0]
    assert (points.get_linestyle(), list(points.get_xdata())) == ("None", [15, 19])


def test_a_line_ends_where_shifting_further_helps_neither_figure():
    rows = [drawn("CE", (0, 10, 20), (40, 40, 45)), drawn("Balanced Softmax, tau 1", (10, 20, 15), (40, 50, 47))]
    (axes,) = trade_off(rows).axes
    lines = {tuple(line.get_xdata()) for line in axes.lines if line.get_linestyle() == "-"}
    assert lines == {(0, 10, 20), (10, 20)}


def test_a_method_has_the_same_colour_in_every_figure():
    def colours(*labels):
        rows = [drawn(label, (10, 20, 30), (41 + place, 50, 47)) for place, label in enumerate(("CE", *labels))]
        (axes,) = trade_off(rows).axes
        return {entry.get_label(): entry[0].get_color() for entry in axes.containers if entry.get_label() in labels}

    several = colours("LDAM-DRW", "car-worst", "Balanced Softmax", "CAR class-wise, mixed", "CAR, mixed")
    assert len(set(several.values())) == len(several) == 5
    few = colours("Balanced Softmax", "car-worst")
    assert few == {name: several[name] for name in few}


def test_four_panels_stand_in_two_rows():
    rows = [row(label, overall=(40.0, 41.0), tail=(low, low), bottom_10pct=(low, low), bottom_20pct=(low, low),
                worst_test=(low, low))
            for label, low in (("CE", 1.0), ("Balanced Softmax, tau 1", 2.0))]  # fmt: skip
    figure = trade_off(rows)
    assert [axes.get_subplotspec().rowspan.start for axes in figure.axes] == [0, 0, 1, 1]


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
    (axes,) = confusions({"pretrained": {"CAR": [tmp_path / str(seed) for seed in range(3)]}}).axes
    order = [names.index(tick.get_text()) for tick in axes.get_yticklabels()]
    assert sorted(order) == list(range(6))
    np.testing.assert_allclose(axes.images[0].get_array(), 100 * np.mean(expected, axis=0)[np.ix_(order, order)])


def exponential(classes, largest, imbalance):
    return profile("exponential", [largest] * classes, imbalance)


def test_the_ten_classes_span_head_medium_and_tail():
    """The largest, the smallest, and others at equal distances: on every cut of every data set of the paper."""
    cuts = [(100, 500, 50), (100, 500, 100), (100, 500, 200), (200, 500, 100), (1000, 1280, 256)]
    for counts in (exponential(*cut) for cut in cuts):
        shuffled = np.random.default_rng(0).permutation(counts)
        view = spanning(shuffled, len(counts))
        assert list(shuffled[view]) == [
            counts[place] for place in np.linspace(0, len(counts) - 1, 10).round().astype(int)
        ]
        members = ClassCounts(shuffled.tolist()).groups()
        assert {next(group for group in members if label in members[group]) for label in view} == {*members}
    assert spanning(np.full(4, 7), 4) == [0, 1, 2, 3]
    assert spanning(None, 21) == [0, 2, 4, 7, 9, 11, 13, 16, 18, 20]


def test_both_settings_show_the_same_classes_and_say_what_is_missing(tmp_path):
    counts = exponential(30, 300, 100)
    labels, folders = np.repeat(np.arange(30), 4), {}
    for setting in ("from scratch", "pretrained"):
        for method in ("WB", "CAR") if setting == "pretrained" else ("CAR",):
            folder = tmp_path / setting / method
            folder.mkdir(parents=True)
            np.savez(folder / "predictions.npz", labels=labels, predicted=labels, class_counts=counts,
                     class_names=[f"a class with a long name {label}" for label in range(30)])  # fmt: skip
            folders.setdefault(setting, {})[method] = [folder]
    figure = confusions(folders)
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["CAR, from scratch", "WB, from scratch: not trained", "CAR, pretrained", "WB, pretrained"]
    drawn = [axes for axes in figure.axes if axes.images]
    names = [[tick.get_text() for tick in axes.get_yticklabels()] for axes in drawn]
    assert [len(ticks) for ticks in names] == [10, 10, 0]  # only on the left, where they are the same
    assert names[0] == names[1]
    assert names[0][0].endswith("… 300")
    assert [text.get_text() for text in drawn[0].texts if not text.get_text().isdigit()] == ["head", "medium", "tail"]
    assert all(np.array_equal(axes.images[0].get_array(), 100 * np.eye(10)) for axes in drawn)


def test_the_figures_have_the_cells_of_the_papers_confusions():
    cells = {(cell.setting, cell.label) for cell in figure_cells() if cell.dataset == "cifar100-lt"}
    assert {(setting, label) for setting in ("scratch", "pretrained") for label in ("WB", "BALMS", "CAR")} <= cells
    printed = {(*cell.ground, cell.method) for cell in find_experiment("lt-main").cells}
    assert {(*cell.ground, cell.method) for cell in figure_cells() if cell.setting == "scratch"} <= printed


def test_one_command_draws_both_settings_and_refuses_two_data_sets(tmp_path, monkeypatch):
    experiment, drawn = find_experiment("figures"), []
    monkeypatch.setattr(draw, "chosen_records", lambda plan, *_, **__: (
        {run.name: SimpleNamespace(folder=str(tmp_path)) for run in plan.runs}, ""))  # fmt: skip
    monkeypatch.setattr(draw, "confusions", lambda settings, title: drawn.append((settings, title)))
    monkeypatch.setattr(draw, "save", lambda figure, path: None)
    cells = Slice(dataset=("cifar100-lt",)).of(experiment)
    draw.draw(make_plan(experiment, cells, "paper", [0], Overrides()), [], "confusion", tmp_path / "x.png")
    [(settings, title)] = drawn
    assert {setting: [*runs] for setting, runs in settings.items()} == {
        "from scratch": ["WB", "BALMS", "CAR"], "pretrained": ["WB", "BALMS", "CAR"],
    }  # fmt: skip
    assert [*settings] == ["from scratch", "pretrained"]
    assert title == "cifar100-lt, imbalance factor 100, scale paper, 1 seed"
    everything = make_plan(experiment, experiment.cells, "paper", [0], Overrides())
    with pytest.raises(ValueError, match="a figure shows one cut of one data set"):
        draw.draw(everything, [], "confusion", tmp_path / "x.png")
    with pytest.raises(ValueError, match="a figure shows one cut of one data set"):
        draw.draw(make_plan(experiment, cells, "paper", [0], Overrides()), [], "worst", tmp_path / "x.png")
