"""Every printed number has a cell that can be trained, and planning needs neither data nor torch."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

import spectail
from spectail import ClassCounts
from spectail.experiments.catalog import EXPERIMENTS, find_experiment
from spectail.experiments.cells import merged, method_settings, nested, printed_cell
from spectail.experiments.cost import training_images
from spectail.experiments.published import printed, value_of
from spectail.experiments.runs import Run
from spectail.experiments.scales import SCALES, Overrides, sized
from spectail.methods.registry import ENTRIES, find_method

CSV = Path(spectail.__file__).parent / "experiments" / "published.csv"


def test_all_847_numbers_are_there_and_in_a_table():
    rows = list(csv.DictReader(CSV.read_text().splitlines()))
    assert len(rows) == len(printed()) == 847
    covered = sum(
        value_of(cell.place, metric) is not None
        for name in EXPERIMENTS if (experiment := find_experiment(name)).printed
        for cell in experiment.cells for metric in experiment.metrics
    )  # fmt: skip
    assert covered == 847
    assert {row["table"] for row in rows} == {
        "tab:" + name.replace("-", "_") for name in EXPERIMENTS if find_experiment(name).printed
    }


def test_a_number_is_the_one_that_is_printed():
    for row in csv.DictReader(CSV.read_text().splitlines()):
        factor = None if row["imbalance_factor"] == "natural" else float(row["imbalance_factor"])
        place = (row["setting"], row["dataset"], factor, row["backbone"], row["method"])
        assert value_of(place, row["metric"]) == float(row["value"])
        assert printed_cell(place).place == place


@pytest.mark.parametrize("scale", SCALES)
def test_every_cell_becomes_a_configuration(tmp_path, scale):
    kinds = {}
    for name in EXPERIMENTS:
        for cell in find_experiment(name).cells:
            kinds.setdefault((cell.setting, cell.dataset, cell.backbone, cell.method, cell.changes), cell)
    for cell in kinds.values():
        run = Run(cell, scale, sized(cell, scale), 3)
        config = run.config(tmp_path)
        base, plus, _ = cell.method.partition("/")[0].partition("+")
        assert (config.method, config.seed, config.optim.epochs) == (base, 3, run.sized.epochs)
        assert config.car.enabled == bool(plus) or find_method(base).car
        assert config.model.model == run.sized.model
        assert config.data.imbalance == cell.imbalance
        for setting, value in cell.changes:
            found = config
            for part in setting.split("."):
                found = getattr(found, part)
            assert found == value


def test_the_paper_scale_is_the_papers():
    def at(setting, dataset, backbone, method="ce"):
        cell = printed_cell((setting, dataset, 100.0 if dataset != "inat2018" else None, backbone, "CE"))
        return sized(cell, "paper"), Run(cell, "paper", sized(cell, "paper"), 0).config(Path("x"))

    scratch, config = at("scratch", "cifar100-lt", "vit_small")
    assert (config.model.model, config.optim.epochs, config.optim.lr) == ("vit_small_patch16_224", 200, 1e-4)
    assert (config.optim.optimizer, config.optim.batch_size, config.optim.schedule) == ("adamw", 128, "cosine")
    decay, size = scratch.notes  # what the paper does not say
    assert (decay.split(",")[0], config.optim.weight_decay) == ("weight decay 5e-3", 5e-3)
    assert size.startswith("224 x 224 pixels")
    assert at("scratch", "inat2018", "vit_small")[1].optim.epochs == 300
    tuned = at("pretrained", "tiny-imagenet-lt", "resnet")
    assert (tuned[1].optim.epochs, tuned[1].optim.lr, tuned[1].model.pretrained) == (100, 2e-4, True)
    assert tuned[0].notes == ("ResNet-50 (the paper names no size)",
                              "cosine schedule and weight decay 0.05 (the paper names none)")  # fmt: skip
    assert (tuned[1].optim.schedule, tuned[1].optim.weight_decay) == ("cosine", 0.05)
    assert at("scratch", "imagenet-lt", "vit_small")[1].data.dataset == "imagenet-lt-exp"


@pytest.mark.parametrize("scale", ["quick", "short"])
def test_a_smaller_scale_says_what_it_changes(scale):
    for name in EXPERIMENTS:
        for cell in find_experiment(name).cells:
            assert any("epochs" in note for note in sized(cell, scale).notes)


def test_what_a_person_changes_is_noted():
    cell = printed_cell(("pretrained", "cifar100-lt", 100.0, "vit_small", "CAR"))
    usual, changed = sized(cell, "quick"), sized(cell, "quick", Overrides(model="resnet18", epochs=5, img_size=96))
    assert {"resnet18 instead of vit_small_patch16_224", "96 x 96 pixels instead of 224",
            "5 epochs instead of 100"} <= set(changed.notes)  # fmt: skip
    assert Run(cell, "quick", usual, 0).name != Run(cell, "quick", changed, 0).name


def test_methods_that_need_images_are_refused_in_a_probe():
    assert {entry.name for entry in ENTRIES if entry.load().needs_images} == {"bbn", "cmo", "concutmix"}
    cell = printed_cell(("pretrained", "cifar100-lt", 100.0, "vit_small", "CAR + CMO"))
    assert "works on images" in sized(cell, "quick").refused
    assert sized(cell, "short").refused is None


def test_cells_of_another_scale_are_refused():
    """A head on stored features has no network to tune, and a network no features to choose."""
    lora = next(cell for cell in find_experiment("tuning").cells if cell.label == "CE, LoRA")
    decay = find_experiment("decay").cells[0]
    assert "tunes a network" in sized(lora, "quick").refused
    assert "use --scale quick" in sized(decay, "complete").refused
    assert sized(lora, "complete").refused is sized(decay, "quick").refused is None


def test_a_method_is_written_as_compare_writes_it():
    from spectail.cli.compare import flags_of

    for name in EXPERIMENTS:
        for method in {cell.method for cell in find_experiment(name).cells}:
            flags, settings = flags_of(method), method_settings(method)
            assert flags[1] == settings["method"]
            assert ("--car" in flags) == settings.get("car", {}).get("enabled", False)
            assert ("--car.preset" in flags) == ("preset" in settings.get("car", {}))


def test_images_of_a_cut_are_those_of_the_data(tmp_path):
    from spectail.data.datasets import load

    for factor in (100.0, 50.0):
        expected = training_images({"dataset": "glyphs-lt", "imbalance": factor})
        assert len(load("glyphs-lt", imbalance=factor, check="none").train) == expected


def test_planning_needs_no_torch():
    code = (
        "import sys; from spectail.cli.experiment import run; run(['plan', 'all', '--scale', 'paper', '--store', "
        "'nowhere/s.sqlite']); assert not {'torch', 'numpy', 'matplotlib'} & sys.modules.keys(), 'slow import'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert not Path("nowhere").exists()


def test_an_unknown_experiment_names_the_nearest():
    with pytest.raises(ValueError, match=r"did you mean.*lt-main"):
        find_experiment("lt-man")


def test_what_the_search_chose_is_what_car_balanced_does():
    from spectail.car import PRESETS
    from spectail.experiments.grids import CANDIDATES, CHOSEN

    alpha, changes, _ = PRESETS["balanced"]
    tau = find_method("car-balanced").load().options.tau
    shipped = {"options.tau": tau, "car.alpha": alpha, "car.gamma": changes["gamma"], "car.r0": changes["r0"]}
    assert shipped == CHOSEN
    chosen = {name.partition(".")[2]: value for name, value in CHOSEN.items()}
    assert all(chosen[name] in values for name, values in CANDIDATES.items())  # a candidate, not something else
    assert PRESETS["classwise"].options.items() - changes.items() == {("gamma", 2.0)}  # the rest is class-wise


def test_car_worst_by_name_is_its_preset():
    from spectail.car import PRESETS
    from spectail.experiments.grids import CHOSEN_WORST
    from spectail.methods.registry import find_method

    alpha, changes, tau = PRESETS["worst"]
    assert {"options.tau": tau, "car.alpha": alpha, "car.sharpness": changes["sharpness"]} == CHOSEN_WORST
    assert find_method("car-worst").load().options.tau == tau


def test_car_balanced_by_name_is_the_cell_of_the_trade_off():
    from spectail.training.car_term import make_car_term
    from spectail.training.config_io import from_dict

    cell = next(cell for cell in find_experiment("trade-off").cells if cell.label == "car-balanced, alpha 1")
    written = from_dict(merged(method_settings(cell.method), nested(cell.changes)))
    by_name = from_dict({"method": "car-balanced"})
    counts = ClassCounts([50, 20, 3])
    made = [make_car_term(config, counts, find_method(config.method)) for config in (written, by_name)]
    assert made[0].alpha == made[1].alpha
    assert made[0].car.__dict__.keys() == made[1].car.__dict__.keys()
    for name in ("beta", "ema", "kind", "r0", "prior_shift", "weighting", "normalize_weights", "ema_start", "mixed"):
        assert getattr(made[0].car, name) == getattr(made[1].car, name), name
    assert written.options == by_name.options
