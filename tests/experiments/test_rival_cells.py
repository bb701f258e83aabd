"""What the cells of the paper's tables train rivals with: the paper's optimiser, and the options that each of them was
published with on the data set at hand."""

from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from spectail.experiments.catalog import EXPERIMENTS, find_experiment
from spectail.experiments.cells import Cell, printed_cell
from spectail.experiments.cost import slower
from spectail.experiments.grids import combinations
from spectail.experiments.planning import Slice
from spectail.experiments.runs import Run
from spectail.experiments.scales import ABOUT, Overrides, sized
from spectail.methods.registry import find_method

GROUNDS = [("cifar100-lt", 100.0), ("imagenet-lt", 100.0), ("inat2018", None)]
TWO_STAGES = {"balms", "gml", "wb", "los"}


@cache
def config_of(cell, scale="paper", overrides=None):
    return Run(cell, scale, sized(cell, scale, overrides), 0).config(Path("x"))


def cell_of(method, dataset, setting="scratch"):
    factor = None if dataset == "inat2018" else 100.0
    return printed_cell((setting, dataset, factor, "vit_small", method))


def printed_cells():
    return [cell for name in EXPERIMENTS if (one := find_experiment(name)).printed for cell in one.cells]


def test_every_cell_of_the_paper_is_trained_by_its_optimiser():
    """ "All experiments use the AdamW optimizer", WB and LOS included: 47 of the 519 cells are theirs."""
    cells = printed_cells()
    assert len(cells) == 519
    assert Counter(cell.method.partition("+")[0] for cell in cells if cell.method.startswith(("wb", "los"))) == {
        "los": 27, "wb": 20,
    }  # fmt: skip
    wanted = {"scratch": ("adamw", 1e-4, 5e-3), "pretrained": ("adamw", 2e-4, 0.05)}
    for scale in ("paper", "short"):
        for cell in cells:
            optim = config_of(cell, scale).optim
            assert (optim.optimizer, optim.lr, optim.weight_decay) == wanted[cell.setting], cell


@pytest.mark.parametrize("method", ["WB", "LOS"])
def test_other_scales_say_that_the_optimiser_is_the_methods_own(method):
    for scale, cell in (("quick", cell_of(method, "cifar100-lt")), ("paper", glyphs(method.lower()))):
        found = sized(cell, scale)
        assert "SGD 0.01 and decay 5e-3 in stage one, as published" in found.notes
        optim = Run(cell, scale, found, 0).config(Path("x")).optim
        assert (optim.optimizer, optim.lr, optim.weight_decay) == ("sgd", 0.01, 5e-3)
    assert not any("SGD 0.01" in note for note in sized(cell_of(method, "cifar100-lt"), "paper").notes)


def glyphs(method):
    return Cell("scratch", "glyphs-lt", 100.0, "small-cnn", method, method)


# what was published for each data set, as a review of the original code found
@pytest.mark.parametrize(
    ("method", "wanted"),
    [
        ("LOS", [{"delta": 0.98}, {"delta": 0.998}, {"delta": 0.9997}]),
        ("GML", [{"stage2_batch_size": 512}, {"stage2_batch_size": 2048}, {"stage2_batch_size": 4096}]),
        ("ConCutMix", [{"class_weight": 2.0, "contrast_weight": 0.6, "width": 128},
                       {"class_weight": 1.0, "contrast_weight": 0.35, "width": 1024},
                       {"class_weight": 1.0, "contrast_weight": 0.35, "width": 1024}]),
        ("MetaSAug", [{"strength": 0.75, "max_margin": 0.5}, {"strength": 0.25, "frozen": True},
                      {"strength": 0.25, "frozen": True}]),
        ("ReMix", [{"mix_alpha": 1.0, "defer": "reweight"}, {"mix_alpha": 0.4, "defer": "reweight"},
                   {"mix_alpha": 0.4, "defer": "reweight"}]),
        ("CMO", [{"base_loss": "ce", "defer": "reweight"}, {"base_loss": "balanced-softmax"},
                 {"base_loss": "balanced-softmax"}]),
        ("BALMS", [{"stage2_lr": 0.1, "meta_data": "train"}, {"stage2_lr": 0.5, "meta_data": "train"},
                   {"stage2_lr": 0.5, "meta_data": "train"}]),
        ("WB", [{"stage2_epochs": 10}, {"stage2_epochs": 10}, {"stage2_epochs": 10}]),
        ("CB", [{"base": "focal", "gamma": 1.0}, {"base": "focal", "gamma": 0.5, "beta": 0.999}, {"beta": 0.999}]),
        ("LDAM-DRW", [{"max_margin": 0.5}, {"max_margin": 0.5}, {"max_margin": 0.3}]),
    ],
)  # fmt: skip
def test_options_are_those_of_the_data_set(method, wanted):
    for (dataset, _), options in zip(GROUNDS, wanted, strict=True):
        cells = [cell_of(method, dataset)]
        if method in ("ConCutMix", "MetaSAug", "ReMix", "CMO"):
            cells.append(cell_of(f"CAR + {method}", dataset))
        for cell in cells:
            found = vars(config_of(cell).options)
            assert {name: found[name] for name in options} == options, cell


def test_heads_of_concutmix():
    assert config_of(cell_of("ConCutMix", "cifar100-lt")).model.head == "linear"
    assert config_of(cell_of("ConCutMix", "imagenet-lt")).model.head is None


def test_a_second_stage_shrinks_with_the_run_and_never_grows():
    lengths = {
        ("WB", "scratch", None): 10, ("WB", "pretrained", None): 5, ("LOS", "scratch", None): 20,
        ("WB", "scratch", 20): 1, ("LOS", "scratch", 20): 2, ("LOS", "scratch", 400): 20,
    }  # fmt: skip
    for (method, setting, epochs), wanted in lengths.items():
        changed = Overrides(epochs=epochs) if epochs else None
        assert config_of(cell_of(method, "cifar100-lt", setting), overrides=changed).options.stage2_epochs == wanted
    assert config_of(cell_of("BALMS", "imagenet-lt")).options.stage2_epochs == 20  # of a network of 90 epochs, not 44


def test_a_setting_of_the_cell_wins_over_the_recipe():
    cell = Cell("scratch", "cifar100-lt", 100.0, "vit_small", "cmo", "CMO", (("options.defer", "none"),))
    assert config_of(cell).options.defer == "none"


def test_notes_say_the_variant_and_the_second_stage():
    for cell in printed_cells():
        name, notes = cell.method.partition("+")[0], sized(cell, "paper").notes
        several = name in ("cb", "remix", "cmo", "concutmix", "metasaug")
        assert any("(the paper of CAR names none)" in note for note in notes) == several
        frozen = name == "metasaug" and cell.dataset in ("imagenet-lt", "inat2018")
        assert ("second stage by SGD, as published" in notes) == (name in TWO_STAGES or frozen)


def test_the_steps_of_a_new_head_are_in_the_estimate():
    """Measured on frozen features, 12 epochs over 10,847 images: cross entropy 1 to 2 s, BALMS 18 to 21 s."""
    cell = cell_of("BALMS", "cifar100-lt", "pretrained")
    run = Run(cell, "quick", sized(cell, "quick"), 0)
    assert pytest.approx(slower(run, 10847) - 1) == 1_024_000 * 2 / 3 / (ABOUT * 10847)
    explicit = Cell(*cell.ground, cell.method, cell.label, (("options.stage2_epochs", 1),))
    assert slower(Run(explicit, "quick", sized(explicit, "quick"), 0), 10847) == 1.3


def test_cars_own_options_stay_its_own():
    for cell in combinations():
        if cell.label == "car-balanced" and cell.dataset == "cifar100-lt":
            assert config_of(cell, "quick").options.tau == 0.75


def test_the_reconstruction_is_called_by_its_own_name():
    for name in EXPERIMENTS:
        for cell in find_experiment(name).cells:
            assert ("SAFA-R" in cell.label) == cell.method.startswith("safa-r")
    cell = cell_of("SAFA", "cifar100-lt")
    assert (cell.label, cell.place[-1]) == ("SAFA-R", "SAFA")
    assert cell_of("CAR + SAFA", "cifar100-lt").label == "CAR + SAFA-R"
    for asked in ("SAFA", "SAFA-R", "safa-r"):
        assert {one.label for one in Slice(method=(asked,)).of(find_experiment("lt-main"))} == {"SAFA-R"}


def test_sampling_and_weights_from_the_start_have_rows():
    """RS and RW, which the paper's source has in a comment."""
    rows = {cell.label: cell for cell in combinations() if cell.label in ("RS", "RW")}
    resampled, weighted = config_of(rows["RS"], "quick"), config_of(rows["RW"], "quick")
    from spectail import ClassCounts

    counts = ClassCounts([80, 15, 5])
    method = find_method("ce").load()(counts, resampled.options, epochs=12)
    stream = method.streams(method.stages()[0])["main"]
    assert (stream.then, stream.switch) == ("class-balanced", 0)
    assert "RS" not in {cell.label for cell in Slice(method=("ce",)).of(find_experiment("combinations"))}
    assert {cell.label for cell in Slice(method=("RS",)).of(find_experiment("combinations"))} == {"RS"}
    weights = find_method("cb").load()(counts, weighted.options, epochs=12).criterion.class_weights()
    frequency = (weights * counts.counts).tolist()
    assert frequency == pytest.approx([frequency[0]] * 3)


def test_every_cell_of_the_paper_has_its_protocol():
    """Epochs, batch, schedule, size, transform and weights, one table for all 519: the paper's text, and where it is
    silent the authors' script (224 pixels, one transform for all)."""
    tags = {"vit_tiny": "", "vit_small": ".augreg_in1k", "vit_base": ".augreg_in1k", "vit_large": "", "resnet": "",
            "swin": ""}  # fmt: skip
    for cell in printed_cells():
        config, found = config_of(cell), sized(cell, "paper")
        long = 300 if cell.dataset == "inat2018" else 200
        assert config.optim.epochs == (long if cell.setting == "scratch" else 100), cell
        assert (config.optim.batch_size, config.optim.schedule) == (128, "cosine"), cell
        assert (config.transform, found.pixels, config.model.img_size) == ("vit-224-fast", 224, None), cell
        assert config.model.pretrained == (cell.setting == "pretrained")
        _, dot, tag = config.model.model.partition(".")
        assert dot + tag == (tags[cell.backbone] if cell.setting == "pretrained" else ""), cell
        noted = any("ImageNet-21k" in note for note in found.notes)
        assert noted == (cell.setting == "pretrained" and cell.backbone in ("vit_tiny", "vit_large")), cell


def test_the_official_lists_of_imagenet_lt_can_be_chosen():
    official = Overrides(imagenet_lt="official")
    for cell in (cell for cell in printed_cells() if cell.dataset == "imagenet-lt"):
        usual, found = sized(cell, "paper"), sized(cell, "paper", official)
        assert usual.own["data"]["dataset"] == "imagenet-lt-exp"
        assert any("exponential cut" in note for note in usual.notes)
        assert found.own["data"] == {"dataset": "imagenet-lt"}
        assert any("115,846 images" in note for note in found.notes)
        assert (found.refused is None) == (cell.imbalance == 100.0)
