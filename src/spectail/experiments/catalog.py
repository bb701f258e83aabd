"""The experiments by name: every table of the paper as it is printed, and grids of our own."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from .cells import Cell, printed_cell
from .grids import OWN
from .published import printed

GROUPS = ("overall", "head", "medium", "tail")
TITLES = {
    "lt-main": "Main table: all methods of the paper, ViT-Small from scratch, on three data sets",
    "lt-pretrained": "Main table: all methods of the paper, ViT-Small fine-tuned, on three data sets",
    "wgr-lt": "Accuracy of the worst class in training and in test, and their ratio",
    "backbone": "Five backbones from scratch on ImageNet-LT",
    "lt-ratio": "Imbalance factors 50 and 200, from scratch",
    "lt-aug": "CAR combined with five augmentation methods, from scratch, at three imbalance factors",
    "resnet-tiny-if": "A ResNet fine-tuned on Tiny-ImageNet-LT, at three imbalance factors",
    "tiny-backbones-appendix": "Three sizes of ViT fine-tuned on Tiny-ImageNet-LT",
    "lt-ratio-appendix": "Imbalance factors 50 and 200, fine-tuned",
    "backbone-2-appendix": "CAR combined with five augmentation methods, on five backbones, from scratch",
    "ours-aug-appendix": "CAR combined with five augmentation methods, on five backbones, fine-tuned",
    "lt-aug-v2-appendix": "CAR combined with five augmentation methods, fine-tuned, at three imbalance factors",
    "lambda-ema-combined": "Ablations of CAR: without class weights (Lambda), without averaging (EMA)",
}


@dataclass(frozen=True)
class Experiment:
    """A table: its cells and what is read off them."""

    name: str
    title: str
    cells: tuple[Cell, ...]
    metrics: tuple[str, ...]
    printed: bool
    """A table of the paper; otherwise a grid of ours."""


def _from_paper(name: str) -> Experiment:
    entries = [entry for entry in printed() if entry.table == name]
    cells = tuple(map(printed_cell, dict.fromkeys(entry.place for entry in entries)))
    metrics = {entry.metric for entry in entries}
    order = (*GROUPS, "worst_train", "worst_test", "worst_ratio")
    return Experiment(name, TITLES[name], cells, tuple(metric for metric in order if metric in metrics), True)


def _own(name: str) -> Experiment:
    grid = OWN[name]
    return Experiment(name, grid.title, tuple(grid.cells()), grid.metrics, False)


EXPERIMENTS: Mapping[str, Callable[[], Experiment]] = {name: partial(_from_paper, name) for name in TITLES} | {
    name: partial(_own, name) for name in OWN
}


def find_experiment(name: str) -> Experiment:
    """An experiment by its name.

    Example:
        >>> experiment = find_experiment("lt-main")
        >>> len(experiment.cells), experiment.metrics
        (48, ('overall', 'head', 'medium', 'tail'))
    """
    if name not in EXPERIMENTS:
        close = difflib.get_close_matches(name, EXPERIMENTS, n=3, cutoff=0.4)
        hint = f"did you mean {', '.join(close)}?" if close else f"there are {', '.join(EXPERIMENTS)}."
        raise ValueError(f"unknown experiment {name!r}; {hint}")
    return EXPERIMENTS[name]()
