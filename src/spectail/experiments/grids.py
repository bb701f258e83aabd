"""Grids of our own: every method with CAR, ablations, sweeps, trade-off curves, the runs behind the figures."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from .cells import METHODS, Cell, Setting

GROUPS = ("overall", "head", "medium", "tail", "worst_test", "zero_classes", "bottom_10pct", "bottom_20pct", "ece")
WORST = ("worst_train", "worst_test", "worst_ratio", "overall")
DIAGNOSTICS = ("cm_gap", "cm_gap_relative", "car_gradient_norm")
RIVALS = tuple(label for label in METHODS if label != "CAR")
PLAIN = {
    "Balanced Softmax": "balanced-softmax", "Logit adjustment": "logit-adjustment", "tau-normalisation": "tau-norm",
    "cRT": "crt", "LWS": "lws",
}  # fmt: skip
FROM_THE_START: dict[str, tuple[str, dict[str, Any]]] = {
    "RS": ("ce", {"options__defer": "resample", "options__defer_at": 0.0}),
    "RW": ("cb", {"options__base": "softmax", "options__beta": 1.0}),
}
"""Class-balanced sampling, and weights of one over the frequency, both from the first epoch on."""
VAL = ("data.val_fraction", 0.2)
SWEEPS: dict[str, dict[str, tuple[float, ...]]] = {
    "car": {
        "beta": (0.0, 0.1, 0.3, 0.5, 0.7, 0.9),
        "r0": (0.01, 0.05, 0.1, 0.2, 0.5, 1.0),
        "alpha": (0.1, 0.3, 0.5, 1.0, 2.0, 5.0),
        "gamma": (0.0, 0.5, 1.0, 2.0, 4.0),
    },
    "car/classwise": {
        "beta": (0.0, 0.5, 0.7, 0.9, 0.95, 0.99),
        "r0": (0.001, 0.01, 0.05, 0.2, 1.0),
        "alpha": (1.0, 2.0, 5.0, 10.0, 20.0, 40.0),
        "gamma": (0.0, 1.0, 2.0, 4.0, 8.0),
    },
}
SWEPT = {"car": "CAR", "car/classwise": "CAR class-wise"}


@dataclass(frozen=True)
class Line:
    """A method of the trade-off at a few values of one setting."""

    method: str
    setting: str
    values: tuple[float, ...]
    fixed: tuple[tuple[str, Any], ...] = ()


def on_line(cell: Cell) -> tuple[str, float] | None:
    """The line that a cell belongs to and its place there, by its label; None for others.

    Example:
        >>> on_line(Cell("scratch", "glyphs-lt", 100.0, "small-cnn", "car", "CAR, alpha 0.5"))
        ('CAR, alpha', 0.5)
    """
    name, _, value = cell.label.rpartition(" ")
    return (name, float(value)) if name.endswith((", tau", ", alpha")) else None


def own_changes(cell: Cell) -> dict[str, Any]:
    """The settings of a cell but for the data that it holds out."""
    return {name: value for name, value in cell.changes if name != VAL[0]}


def is_plain(cell: Cell) -> bool:
    """Whether a cell is cross entropy and nothing else."""
    return cell.method == "ce" and not own_changes(cell)


def is_reference(cell: Cell) -> bool:
    """Whether a cell is Balanced Softmax with tau 1, whose line, drawn after training, CAR has to move."""
    own = dict(set(own_changes(cell).items()) - set(way_of(cell)))
    return cell.method == "balanced-softmax" and own in ({}, {"options.tau": 1.0})


def way_of(cell: Cell) -> tuple[tuple[str, Any], ...]:
    """The settings of a cell that are not of its loss: how the network is trained. A line is that of the same way.

    Example:
        >>> changes = (("options.tau", 1.0), ("optim.weight_decay", 3.0))
        >>> way_of(Cell("pretrained", "cifar100-lt", 100.0, "vit_small", "balanced-softmax", "BS", changes))
        (('optim.weight_decay', 3.0),)
    """
    return tuple(
        (name, value) for name, value in own_changes(cell).items() if not name.startswith(("options.", "car."))
    )


def swept(cell: Cell) -> tuple[str, str, float] | None:
    """Method, setting and value of a cell of :func:`sweeps`; None for others."""
    changes = [(name.removeprefix("car."), value) for name, value in own_changes(cell).items()]
    if cell.method not in SWEEPS or len(changes) != 1 or changes[0][0] not in SWEEPS[cell.method]:
        return None
    return SWEPT[cell.method], *changes[0]


CHOSEN = {"options.tau": 0.75, "car.alpha": 1.0, "car.gamma": 4.0, "car.r0": 0.01}
"""What `search` chose: written out here, so that these cells stay what they are if defaults move."""
CHOSEN_WORST = {"options.tau": 0.75, "car.alpha": 3.0, "car.sharpness": 20.0}
"""The same of `car-worst`, chosen on folds of the training images."""
REFERENCE = "Balanced Softmax, tau"
CURVES: dict[str, Line] = {
    REFERENCE: Line("balanced-softmax", "options.tau", (1.0,)),
    "CAR, alpha": Line("car", "car.alpha", (0.5, 2.0, 5.0)),
    "CAR class-wise, alpha": Line("car/classwise", "car.alpha", (5.0, 10.0, 20.0)),
    "car-balanced, alpha": Line("car-balanced/classwise", "car.alpha", (0.3, 1.0, 3.0), tuple(CHOSEN.items())),
    "car-worst, alpha": Line("car-worst", "car.alpha", (1.0, 3.0, 5.0), tuple(CHOSEN_WORST.items())),
}
"""What the trade-off trains beside cross entropy. No tau: every run draws its line along tau itself."""
TAUS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.125, 1.25, 1.375, 1.5, 1.75, 2.0)
CANDIDATES: dict[str, tuple[float, ...]] = {
    "tau": (0.5, 0.75, 1.0, 1.25, 1.5), "alpha": (1.0, 2.0, 5.0, 10.0), "gamma": (2.0, 4.0), "r0": (0.2, 0.01),
}  # fmt: skip
"""Settings of car-balanced that compete for its defaults."""
PLACES: tuple[tuple[Setting, str, str], ...] = (
    ("pretrained", "cifar100-lt", "vit_small"),
    ("scratch", "glyphs-lt", "small-cnn"),
    ("scratch", "cifar100-lt", "vit_small"),
)
FACTORS = (100.0, 50.0, 200.0)
CONFUSED = ("WB", "BALMS", "CAR")
"""Whose confusions the paper draws, on CIFAR-100-LT from scratch and fine-tuned."""


@dataclass(frozen=True)
class Grid:
    title: str
    cells: Callable[[], Iterator[Cell]]
    metrics: tuple[str, ...] = GROUPS


def _cell(place: tuple[Setting, str, str], method: str, label: str, factor: float = 100.0, **changes: Any) -> Cell:
    setting, dataset, backbone = place
    named = tuple((name.replace("__", "."), value) for name, value in changes.items())
    return Cell(setting, dataset, factor, backbone, method, label, named)


def _dotted(changes: dict[str, Any]) -> dict[str, Any]:
    return {name.replace(".", "__"): value for name, value in changes.items()}


def combinations() -> Iterator[Cell]:
    """Every method, plain and with CAR as the paper has it, and CAR's other presets."""
    for place in PLACES[:2]:
        for factor in FACTORS:
            for label, method in (METHODS | PLAIN).items():
                yield _cell(place, method, label, factor)
                if method != "car":
                    yield _cell(place, f"{method}+car", f"{label} + CAR", factor)
            for label, (method, changes) in FROM_THE_START.items():
                yield _cell(place, method, label, factor, **changes)
            yield _cell(place, "car/classwise", "CAR class-wise", factor)
            for preset, title in (("paper", "CAR shifted"), ("classwise", "CAR class-wise shifted")):
                yield _cell(place, f"car-balanced/{preset}", f"Balanced Softmax + {title}", factor, options__tau=1.0)
            yield _cell(place, "car-balanced/classwise", "car-balanced", factor, **_dotted(CHOSEN))
            yield _cell(place, "car-worst", "car-worst", factor, **_dotted(CHOSEN_WORST))


ABLATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "CE": ("ce", {}),
    "CAR": ("car", {}),
    "CAR without Lambda": ("car", {"car__weighting": "none"}),
    "CAR without EMA": ("car", {"car__beta": 0.0}),
    "CAR, r0 0.01": ("car", {"car__r0": 0.01}),
    "CAR, weights divided by their mean": ("car", {"car__normalize_weights": True}),
    "CAR, competitors without the target": ("car", {"car__competitors": "non-target"}),
    "CAR, gate without gradient": ("car", {"car__gate_grad": False}),
    "CAR, history from the first batch": ("car", {"car__ema_start": "first"}),
    "CAR, no gate": ("car", {"car__surrogate": "no-gate"}),
    "CAR, no softmax": ("car", {"car__surrogate": "no-softmax"}),
    "CAR, no gate and no softmax": ("car", {"car__surrogate": "no-both"}),
    "CAR, class EMA": ("car", {"car__ema": "class"}),
    "CAR, class EMA 0.9": ("car", {"car__ema": "class", "car__beta": 0.9}),
    "CAR, class EMA 0.9, alpha 10": ("car", {"car__ema": "class", "car__beta": 0.9, "car__alpha": 10.0}),
    "CAR class-wise": ("car/classwise", {}),
    "CAR class-wise without margin": ("car/classwise", {"car__gamma": 0.0}),
    "CAR class-wise, all competitors": ("car/classwise", {"car__competitors": "all"}),
    "CAR class-wise without Lambda": ("car/classwise", {"car__weighting": "none"}),
    "CAR class-wise, batch EMA": ("car/classwise", {"car__ema": "batch"}),
    "CAR as in the authors' script": ("car/reference", {}),
    "Balanced Softmax": ("balanced-softmax", {}),
    "Balanced Softmax + CAR, logits not shifted": ("balanced-softmax+car", {}),
    "Balanced Softmax + CAR, logits shifted": ("car-balanced/paper", {"options__tau": 1.0}),
    "Balanced Softmax + CAR class-wise, not shifted": ("balanced-softmax+car/classwise", {}),
    "Balanced Softmax + CAR class-wise, shifted": ("car-balanced/classwise", {"options__tau": 1.0}),
}


def ablations() -> Iterator[Cell]:
    for place in PLACES:
        for label, (method, changes) in ABLATIONS.items():
            yield _cell(place, method, label, **changes)


def diagnostics() -> Iterator[Cell]:
    """The distance of CAR's history from the whole confusion, and the gradient of CAR alone, logged every epoch."""
    for label, method in {"CAR": "car", "CAR class-wise": "car/classwise", "CAR (script)": "car/reference"}.items():
        for place in PLACES:
            yield _cell(place, method, label, log_cm_gap=True, log_gradient=True)


def sweeps() -> Iterator[Cell]:
    """One setting of CAR at a time, on validation data cut from the training set."""
    for place in PLACES:
        for method, settings in SWEEPS.items():
            for name, values in settings.items():
                for value in values:
                    changes = {f"car__{name}": value, "data__val_fraction": VAL[1]}
                    yield _cell(place, method, f"{SWEPT[method]}, {name} {value:g}", **changes)


def trade_off() -> Iterator[Cell]:
    """Overall accuracy against the tail: each run draws a line, since its logits are shifted after training."""
    for place in PLACES:
        for factor in FACTORS:
            yield _cell(place, "ce", "CE", factor)
            for name, line in CURVES.items():
                for value in line.values:
                    changes = dict(line.fixed) | {line.setting: value}
                    yield _cell(place, line.method, f"{name} {value:g}", factor, **_dotted(changes))


def selection() -> Iterator[Cell]:
    """The same lines on validation data cut from the training set: what a choice may look at."""
    for cell in trade_off():
        yield replace(cell, changes=(*cell.changes, VAL))


def search() -> Iterator[Cell]:
    """Candidates for the defaults of car-balanced, and the line that they have to beat, on validation data."""
    for place in PLACES:
        for tau in TAUS:
            changes = (("options.tau", tau), VAL)
            yield Cell(*place[:2], 100.0, place[2], "balanced-softmax", f"{REFERENCE} {tau:g}", changes)
        for values in itertools.product(*CANDIDATES.values()):
            own = dict(zip(CANDIDATES, values, strict=True))
            label = "car-balanced, " + ", ".join(f"{name} {value:g}" for name, value in own.items())
            named = (("options.tau", own.pop("tau")), *((f"car.{name}", value) for name, value in own.items()), VAL)
            yield Cell(*place[:2], 100.0, place[2], "car-balanced/classwise", label, named)


def figures() -> Iterator[Cell]:
    """The runs behind the figures: bars of the worst class, and confusion matrices of ten classes."""
    for setting, dataset in (("scratch", "imagenet-lt"), ("pretrained", "cifar100-lt")):
        for label in (*RIVALS, "CAR"):
            yield Cell(setting, dataset, 100.0, "vit_small", METHODS[label], label)  # type: ignore[arg-type]
        yield Cell(setting, dataset, 100.0, "vit_small", "concutmix+car", "CAR + ConCutMix")  # type: ignore[arg-type]
    for label in CONFUSED:  # those of the fine-tuned network are above
        yield Cell("scratch", "cifar100-lt", 100.0, "vit_small", METHODS[label], label)


PURPOSE: dict[str, tuple[str, dict[str, Any]]] = {
    "CE": ("ce", {}),
    "Balanced Softmax": ("balanced-softmax", {}),
    "car-balanced": ("car-balanced/classwise", _dotted(CHOSEN)),
    "car-worst": ("car-worst", {}),
    "CAR, alpha 0.5": ("car", {"car__alpha": 0.5}),
}
"""The five methods that every network is trained with."""
FURTHER: dict[str, tuple[str, dict[str, Any]]] = {
    "CAR class-wise, alpha 10": ("car/classwise", {"car__alpha": 10.0}),
    "LDAM-DRW": ("ldam-drw", {}),
    "CAR, alpha 2": ("car", {"car__alpha": 2.0}),
    "CAR, alpha 5": ("car", {"car__alpha": 5.0}),
    "CAR class-wise, alpha 5": ("car/classwise", {"car__alpha": 5.0}),
    "CAR class-wise, alpha 20": ("car/classwise", {"car__alpha": 20.0}),
    "ConCutMix": ("concutmix", {}),
    "ConCutMix + CAR class-wise": ("concutmix+car/classwise", {}),
    "CMO": ("cmo", {}),
    "CMO + CAR class-wise": ("cmo+car/classwise", {}),
    "CAR, alpha 0.5, from half of the epochs on": ("car", {"car__alpha": 0.5, "car__start_epoch": 22}),
    "CAR, alpha rising to 0.5": ("car", {"car__alpha": 0.5, "car__warmup_epochs": 45.0}),
    "CAR class-wise, from half of the epochs on": ("car/classwise", {"car__start_epoch": 22}),
    "CAR class-wise, alpha rising": ("car/classwise", {"car__warmup_epochs": 45.0}),
}
"""What is cheap enough for the embedded set alone; epochs are those of the scale `complete`."""


def purpose() -> Iterator[Cell]:
    """What CAR is for: with a backbone trained from scratch, and with one that starts from ImageNet."""
    for label, (method, changes) in (PURPOSE | FURTHER).items():
        yield _cell(PLACES[1], method, label, **changes)
    for place in (PLACES[0], PLACES[2]):
        for label, (method, changes) in PURPOSE.items():
            yield _cell(place, method, label, **changes)


DECAYS = (0.0, 0.1, 0.3, 1.0, 3.0)
PROJECTED: dict[str, Any] = {"features": "projected", "optim__lr": 0.15 / 16}
"""What heads choose on the features of EfficientNet-Lite0: 256 principal directions, and the rate for so many."""


def decay() -> Iterator[Cell]:
    """Whether what CAR gains over Balanced Softmax is what weight decay gives anyway."""
    for value in DECAYS:
        for label in ("Balanced Softmax", "car-balanced", "car-worst"):
            method, changes = PURPOSE[label]
            way = PROJECTED | {"optim__weight_decay": value}
            yield _cell(PLACES[0], method, f"{label}, decay {value:g}", **changes, **way)


TUNED = ("CE", "Balanced Softmax", "car-balanced")


def tuning() -> Iterator[Cell]:
    """Whether the order of the methods is the same where only a part of the network is trained.

    LoRA has the rate of the whole network: on validation data four times that was worse."""
    for label in TUNED:
        method, changes = PURPOSE[label]
        yield _cell(PLACES[0], method, label, **changes)
        yield _cell(PLACES[0], method, f"{label}, LoRA", **changes, tuning__tune="lora")


VALIDATION = ("val_balanced", "val_head", "val_medium", "val_tail", "val_bottom_10pct", "val_bottom_20pct",
              "val_worst_test")  # fmt: skip
OWN: dict[str, Grid] = {
    "combinations": Grid("Every method, plain and with CAR, at three imbalance factors", combinations),
    "worst-class": Grid(
        "The same runs: accuracy of the worst class in training and in test, and their ratio", combinations, WORST
    ),
    "ablations": Grid("CAR with parts left out or replaced", ablations),
    "diagnostics": Grid(
        "How CAR's running confusion matrix and its gradient develop during training",
        diagnostics,
        ("overall", "tail", *DIAGNOSTICS),
    ),
    "sweeps": Grid("CAR's beta, r0, alpha and gamma, varied one at a time, on validation data", sweeps, VALIDATION),
    "selection": Grid("The same lines as trade-off, on validation data", selection, VALIDATION),
    "search": Grid("Candidates for the defaults of car-balanced, on validation data", search, VALIDATION),
    "trade-off": Grid(
        "Overall accuracy against the tail and the worst classes, with a line from each training",
        trade_off,
        (*GROUPS, "steps"),
    ),
    "purpose": Grid(
        "What CAR is for: networks trained to the end or close to it (use --scale complete)",
        purpose,
        (*GROUPS, "worst_train", "late_gain"),
    ),
    "decay": Grid("What CAR gains at several weight decays of a linear head", decay, (*GROUPS, "steps")),
    "tuning": Grid(
        "LoRA beside full fine-tuning (use --scale complete)", tuning, (*GROUPS, "worst_train", "late_gain")
    ),
    "figures": Grid("The runs behind the paper's figures", figures, WORST),
}
