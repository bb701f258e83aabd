"""Recipes: every one makes a valid configuration, keeps its shape in a shorter run, and says where it comes from."""

import dataclasses
import re
from functools import cache

import pytest

from spectail.cli.train import parse
from spectail.methods.registry import ENTRIES
from spectail.training.config import OptimConfig, check_config
from spectail.training.config_io import flat, from_dict
from spectail.training.optim import rate
from spectail.training.recipe_table import RECIPES
from spectail.training.recipes import SAME_AS, find_recipe

CELLS = [(method, dataset) for dataset, entries in RECIPES.items() for method in entries]
SOURCES = ("code", "paper", "issues", "ours")


def flags(*arguments):
    return parse([str(argument) for argument in arguments])[0]


OPTIM = {field.name for field in dataclasses.fields(OptimConfig)} - {"precision"}  # which belongs to the machine


@cache
def config_of(method, dataset):
    """What --recipe makes, without the time that flags take."""
    config = from_dict({"method": method, "data": {"dataset": dataset}})
    return from_dict(find_recipe(method, dataset).settings(), config)


def test_a_run_gets_what_the_table_says():
    """All of it: the table names every setting and every option, so that no default can change a recipe."""
    by_flags = {}
    for method, dataset in CELLS:
        config = config_of(method, dataset)
        if by_flags.setdefault(method, dataset) == dataset:  # one of each method, which has flags of its own
            assert flags("--method", method, "--dataset", dataset, "--recipe", "--output", config.output) == config
        check_recipe(config, method, dataset)


def check_recipe(config, method, dataset):
    check_config(config)
    recipe = find_recipe(method, dataset)
    assert any(word in recipe.source for word in SOURCES)
    assert recipe.variant
    assert re.match(r"\d\d\.\d|none known", recipe.published)
    assert set(recipe.optim) == OPTIM
    assert set(recipe.options) == {field.name for field in dataclasses.fields(config.options)}
    for name, value in recipe.optim.items():
        found = getattr(config.optim, name)
        assert (list(found) if isinstance(found, tuple) else found) == value, (method, dataset, name)
    for name, value in recipe.options.items():
        assert getattr(config.options, name) == value, (method, dataset, name)
    for name, value in flat(recipe.rest).items():
        found = config
        for part in name.split("."):
            found = getattr(found, part)
        assert found == value


def facts(method, dataset):
    """What a run has, by name; epochs of drops as a person counts them."""
    config = config_of(method, dataset)
    optim = dataclasses.asdict(config.optim)
    drops = {"drops": [round(share * optim["epochs"], 6) for share in optim["milestones"]]}
    return vars(config.options) | optim | drops | {"head": config.model.head, "flip": config.flip_test}


# read in the originals or their logs, as a review of them found; epochs counted from 0
@pytest.mark.parametrize(
    ("method", "dataset", "figure", "wanted"),
    [
        ("cb", "cifar10-lt", "none", {"beta": 0.9999, "base": "focal", "gamma": 1.0}),
        ("cb", "cifar100-lt", "39.6", {"base": "focal", "gamma": 1.0}),
        ("cb", "imagenet-lt", "none", {"beta": 0.999, "base": "focal", "gamma": 0.5}),
        ("ldam-drw", "cifar100-lt", "42.0", {"defer": "reweight", "defer_at": 0.8, "max_margin": 0.5}),
        ("balms", "cifar100-lt", "48.0", {"stage2_lr": 0.1, "stage2_batch_size": 512, "meta_lr": 0.01}),
        ("balms", "imagenet-lt", "41.6", {"stage2_epochs": 20, "stage2_lr": 0.5, "meta_lr": 0.001}),
        ("bbn", "cifar100-lt", "42.56", {"nesterov": True, "drops": [119, 159], "decay_factor": 0.01, "lr": 0.1}),
        ("bbn", "inat2018", "none", {"nesterov": True, "drops": [119, 159], "epochs": 180, "decay_factor": 0.1}),
        ("bbn", "imagenet-lt", "46.3", {"nesterov": True}),
        ("bbn", "tiny-imagenet-lt", "none", {"nesterov": True, "drops": [119, 159]}),
        ("wb", "cifar100-lt", "53.35", {"stage2_epochs": 10, "stage2_lr": 0.01, "stage2_weight_decay": 0.1,
                                        "lr": 0.01, "weight_decay": 5e-3, "batch_size": 64, "flip": True}),
        ("wb", "imagenet-lt", "53.9", {"stage2_epochs": 10, "stage2_batch_size": 64}),
        ("los", "cifar100-lt", "none", {"stage2_epochs": 20, "stage2_lr": 5e-4, "delta": 0.98, "optimizer": "sgd"}),
        ("los", "imagenet-lt", "none", {"stage2_epochs": 20, "stage2_batch_size": 64, "delta": 0.998}),
        ("gml", "cifar100-lt", "none", {"old_prior": "keep", "ensemble": 0.5, "divide": "present"}),
        ("remix", "cifar100-lt", "46.77", {"defer": "reweight", "drops": [150, 250], "epochs": 300}),
        ("remix", "inat2018", "70.49", {"defer": "reweight", "drops": [75, 150], "epochs": 200, "mix_alpha": 0.4}),
        ("cmo", "cifar100-lt", "47.0", {"defer": "reweight", "weight_average": "terms", "batch_size": 128}),
        ("cmo", "imagenet-lt", "52.3", {"base_loss": "balanced-softmax", "batch_size": 128, "lr": 0.1,
                                        "drops": [60, 80]}),
        ("cmo", "inat2018", "none", {"base_loss": "balanced-softmax", "drops": [75], "batch_size": 256}),
        ("concutmix", "cifar100-lt", "53.16", {"head": "linear", "tau": 0.9, "lr": 0.15, "drops": [160, 180]}),
        ("concutmix", "cifar10-lt", "none", {"head": "linear", "tau": 0.85}),
        ("concutmix", "imagenet-lt", "58.49", {"head": None, "tau": 0.99, "width": 1024, "contrast_weight": 0.35}),
        ("concutmix", "inat2018", "72.06", {"head": None, "lr": 0.2, "weight_decay": 1e-4, "accumulation": 2}),
        ("metasaug", "cifar100-lt", "48.01", {"max_margin": 0.5, "nesterov": True, "batch_size": 100,
                                              "weight_decay": 5e-4, "drops": [159, 179], "warmup_epochs": 0}),
        ("metasaug", "tiny-imagenet-lt", "none", {"max_margin": 0.5, "nesterov": True, "batch_size": 100,
                                                  "weight_decay": 5e-4, "drops": [159, 179], "warmup_epochs": 0}),
        ("metasaug", "inat2018", "69.50", {"epochs": 200, "frozen": True, "stage2_epochs": 20, "stage2_lr": 3e-4}),
        ("metasaug", "imagenet-lt", "47.67", {"epochs": 90, "frozen": True, "strength": 0.25, "stage2_epochs": 20}),
        ("crt", "imagenet-lt", "none", {"stage2_epochs": 10, "stage2_lr": 0.2}),
        ("lws", "imagenet-lt", "none", {"stage2_epochs": 5, "stage2_lr": 0.2}),
    ],
)  # fmt: skip
def test_recipes_are_the_originals(method, dataset, figure, wanted):
    assert find_recipe(method, dataset).published.startswith(figure)
    found = facts(method, dataset)
    assert {name: found[name] for name in wanted} == wanted


def test_the_only_nesterov_is_that_of_bbn_and_metasaug():
    found = {method for method, dataset in CELLS if find_recipe(method, dataset).optim["nesterov"]}
    assert found == {"bbn", "metasaug"}


def test_every_method_has_a_recipe_for_every_set():
    for dataset in (*RECIPES, *SAME_AS):
        for entry in ENTRIES:
            assert find_recipe(entry.name, dataset).optim


def test_car_has_the_recipe_of_its_base_loss_and_its_own_options():
    assert find_recipe("car", "cifar100-lt").optim is find_recipe("ce", "cifar10-lt").optim
    assert flags("--method", "car", "--dataset", "cifar100-lt", "--recipe").optim.lr == 0.1
    assert flags("--method", "car-balanced", "--dataset", "cifar100-lt", "--recipe").options.tau == 0.75


def test_r200_is_the_published_schedule():
    """Warm-up over five epochs, x1 to epoch 160, x0.01 to 180, x0.0001 to 200."""
    optim = flags("--method", "ldam-drw", "--dataset", "cifar100-lt", "--recipe").optim
    per_epoch, steps = 85, 85 * 200
    at = {epoch: rate(optim, epoch * per_epoch, steps, per_epoch) for epoch in (1, 5, 159, 160, 179, 180, 199)}
    assert at == pytest.approx({1: 86 / 425, 5: 1, 159: 1, 160: 0.01, 179: 0.01, 180: 1e-4, 199: 1e-4})


def test_a_shorter_run_keeps_the_shape():
    config = flags("--method", "cb", "--dataset", "cifar100-lt", "--recipe", "--epochs", 20)
    assert config.optim.epochs == 20
    assert config.optim.warmup_epochs == pytest.approx(0.5)
    assert config.optim.milestones == (0.8, 0.9)
    assert flags("--method", "balms", "--dataset", "imagenet-lt", "--recipe").options.stage2_epochs == 20
    assert flags("--method", "balms", "--dataset", "imagenet-lt", "--recipe", "--epochs", 9).options.stage2_epochs == 2


def test_flags_win_over_the_recipe():
    config = flags("--method", "cb", "--dataset", "cifar100-lt", "--recipe", "--lr", 0.5, "--beta", 0.9,
                   "--warmup-epochs", 3, "--epochs", 10)  # fmt: skip
    assert (config.optim.lr, config.options.beta, config.optim.warmup_epochs) == (0.5, 0.9, 3)


@pytest.mark.parametrize("flag", ["--warmup_epochs", "--warmup-epochs"])
@pytest.mark.parametrize("joined", [False, True])
def test_either_spelling_of_a_flag_wins_over_the_recipe(flag, joined):
    given = [f"{flag}=5"] if joined else [flag, 5]
    config = flags("--method", "cb", "--dataset", "cifar100-lt", "--recipe", *given, "--epochs", 10)
    assert config.optim.warmup_epochs == 5
    stage2 = "--stage2_epochs" if "_" in flag else "--stage2-epochs"
    given = [f"{stage2}=7"] if joined else [stage2, 7]
    config = flags("--method", "balms", "--dataset", "imagenet-lt", "--recipe", *given, "--epochs", 9)
    assert config.options.stage2_epochs == 7


def test_warm_up_of_bbn_and_of_balanced_softmax():
    """BBN from a third of the rate over five epochs; Balanced Softmax from half of it over 38."""
    for method, epochs, start in (("bbn", 5, 1 / 3), ("balanced-softmax", 38, 0.5)):
        optim = flags("--method", method, "--dataset", "cifar100-lt", "--recipe").optim
        found = [rate(optim, step, 10 * optim.epochs, 10) for step in range(10 * epochs + 1)]
        wanted = [start + (1 - start) * (step + 1) / (10 * epochs) for step in range(10 * epochs)]
        assert found[:-1] == pytest.approx(wanted)
        assert found[-1] == pytest.approx(1.0, abs=1e-4)
    ldam = flags("--method", "ldam-drw", "--dataset", "cifar100-lt", "--recipe").optim
    assert rate(ldam, 0, 2000, 10) == pytest.approx(1 / 50)


def test_no_recipe():
    with pytest.raises(ValueError, match="no recipes for glyphs-lt; there are for cifar100-lt"):
        flags("--method", "ce", "--recipe")
    with pytest.raises(ValueError, match="no recipe of"):
        find_recipe("mine", "cifar100-lt")
