"""Recipes: the settings that a method was published or released with on a data set, and where they come from.

The facts are in :mod:`recipe_table`. Every switch is a share of the run, so a recipe keeps its shape when ``--epochs``
shortens it.
"""

from __future__ import annotations

from dataclasses import replace

from .._utils.names import nearest
from .recipe_table import LONGER, NAMED, RECIPES, Recipe

OWN = "own"
"""Stands for the recipe that a method was published with."""
USUAL_LOSS = {"lift": "balanced-softmax"}
"""The method of a named recipe, unless another is asked for."""

BASE_LOSS = {"car": "ce", "car-balanced": "balanced-softmax", "car-worst": "balanced-softmax"}
"""CAR has no recipe of its own: it has the optimisation of its base loss, and its own options."""
SAME_AS = {"cifar10-lt": "cifar100-lt"}
"""A data set whose recipes are those of another one but for what the table says."""


def find_recipe(method: str, dataset: str, name: str = OWN) -> Recipe:
    """The recipe of a method on a data set, where CAR has that of its base loss; or one with a name of its own."""
    if name != OWN:
        if name not in NAMED:
            raise ValueError(f"there is no recipe {name!r}; {nearest(name, NAMED)}")
        recipe = NAMED[name]
        return replace(recipe, optim=recipe.optim | {"epochs": LONGER.get((name, dataset), recipe.optim["epochs"])})
    other = RECIPES.get(SAME_AS.get(dataset, dataset))
    if other is None:
        raise ValueError(f"there are no recipes for {dataset}; there are for {', '.join(RECIPES)}.")
    of_set = other | RECIPES.get(dataset, {})
    found = of_set.get(BASE_LOSS.get(method, method))
    if found is None:
        raise ValueError(f"there is no recipe of {method} for {dataset}; there are {', '.join(of_set)}.")
    return replace(found, options={}) if method in BASE_LOSS else found
