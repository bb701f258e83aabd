"""Recipes: every one makes a valid configuration, keeps its shape in a shorter run, and says where it comes from."""

import pytest

from spectail.cli.train_flags import parse
from spectail.methods.registry import ENTRIES
from spectail.training.config import check_config
from spectail.training.optim import rate
from spectail.training.recipes import RECIPES, SAME_AS, find_recipe

CELLS = [(method, dataset) for dataset, entries in RECIPES.items() for method in entries]
SOURCES = ("code", "paper", "issues", "ours")


def flags(*arguments):
    return parse([str(argument) for argument in arguments])[0]


@pytest.mark.parametrize(("method", "dataset"), CELLS)
def test_every_recipe_makes_a_run(method, dataset):
    config = flags("--method", method, "--dataset", dataset, "--recipe", "--output", "x")
    check_config(config)
    recipe = find_recipe(method, dataset)
    assert any(word in recipe.source for word in SOURCES)
    for name, value in recipe.optim.items():
        found = getattr(config.optim, name)
        assert (list(found) if isinstance(found, tuple) else found) == value
    for name, value in recipe.options.items():
        assert getattr(config.options, name) == value
    assert config.optim.nesterov == ((method, dataset) == ("metasaug", "cifar100-lt"))


def test_every_method_has_a_recipe_for_every_set():
    for entries in RECIPES.values():
        assert {entry.name for entry in ENTRIES} <= {*entries, *SAME_AS}


def test_car_has_the_recipe_of_its_base_loss():
    assert find_recipe("car", "cifar100-lt") is find_recipe("ce", "cifar10-lt")
    assert flags("--method", "car", "--dataset", "cifar100-lt", "--recipe").optim.lr == 0.1


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


@pytest.mark.parametrize("dataset", ["cifar100-lt", "tiny-imagenet-lt"])
def test_class_balanced_is_the_authors_focal_form(dataset):
    options = flags("--method", "cb", "--dataset", dataset, "--recipe").options
    assert (options.beta, options.base, options.gamma) == (0.9999, "focal", 1.0)


def test_no_recipe():
    with pytest.raises(ValueError, match="no recipes for glyphs-lt; there are for cifar100-lt"):
        flags("--method", "ce", "--recipe")
    with pytest.raises(ValueError, match="no recipe of"):
        find_recipe("mine", "cifar100-lt")
