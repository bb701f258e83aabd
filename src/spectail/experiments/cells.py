"""A cell: what one entry of a table is trained with, in the paper's words, before scale and seed are chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

Setting = Literal["scratch", "pretrained"]
METHODS = {
    "CE": "ce", "Focal": "focal", "CB": "cb", "LDAM-DRW": "ldam-drw", "BALMS": "balms", "ReMix": "remix", "BBN": "bbn",
    "MetaSAug": "metasaug", "CMO": "cmo", "SAFA-R": "safa-r", "WB": "wb", "GML": "gml", "ConCutMix": "concutmix",
    "LOS": "los", "CAR": "car",
}  # fmt: skip
"""The paper's names of the methods, and ours; what the paper calls SAFA we have as a reconstruction only."""
OURS, PRINTED = "SAFA-R", "SAFA"
ABLATIONS: dict[str, dict[str, Any]] = {
    "CAR without Lambda": {"car.weighting": "none"},
    "CAR without EMA": {"car.beta": 0.0},
}


@dataclass(frozen=True)
class Cell:
    """One entry of a table: every seed of it is a run."""

    setting: Setting
    dataset: str
    imbalance: float | None
    """None leaves the data as they are."""
    backbone: str
    """As the paper calls it: vit_small, resnet; or a model of ours."""
    method: str
    """As `spectail compare` writes it: ``concutmix+car``, ``car/classwise``."""
    label: str
    """As a table of ours prints it: ``CAR + ConCutMix``."""
    changes: tuple[tuple[str, Any], ...] = ()
    """Settings over those of method and scale, by dotted name: ``("car.beta", 0.0)``."""

    @property
    def ground(self) -> tuple[str, str, float | None, str]:
        """What two cells share that may be compared."""
        return (self.setting, self.dataset, self.imbalance, self.backbone)

    @property
    def place(self) -> tuple[str, str, float | None, str, str]:
        """Where the paper's number would be."""
        return (*self.ground, self.label.replace(OURS, PRINTED))

    def __str__(self) -> str:
        cut = "" if self.imbalance is None else f" IF {self.imbalance:g}"
        return f"{self.label} on {self.dataset}{cut}, {self.backbone}, {self.setting}"


def printed_cell(place: tuple[str, str, float | None, str, str]) -> Cell:
    """The cell of a printed number.

    Example:
        >>> printed_cell(("scratch", "cifar100-lt", 100.0, "vit_small", "CAR + ConCutMix")).method
        'concutmix+car'
    """
    setting, dataset, imbalance, backbone, label = place
    label = label.replace(PRINTED, OURS)
    method, changes = "car", ABLATIONS.get(label, {})
    if not changes:
        added = label.removeprefix("CAR + ")
        method = METHODS[added] + ("+car" if added != label else "")
    assert setting in ("scratch", "pretrained")
    return Cell(setting, dataset, imbalance, backbone, method, label, tuple(changes.items()))  # type: ignore[arg-type]


def method_settings(method: str) -> dict[str, Any]:
    """``balanced-softmax+car/classwise`` as settings of a run.

    Example:
        >>> method_settings("cmo+car")
        {'method': 'cmo', 'car': {'enabled': True}}
        >>> method_settings("car/classwise")
        {'method': 'car', 'car': {'preset': 'classwise'}}
    """
    name, _, preset = method.partition("/")
    base, plus, _ = name.partition("+")
    car: dict[str, Any] = ({"enabled": True} if plus else {}) | ({"preset": preset} if preset else {})
    return {"method": base} | ({"car": car} if car else {})


def nested(changes: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Dotted names as nested settings.

    Example:
        >>> nested([("car.beta", 0.0), ("seed", 1)])
        {'car': {'beta': 0.0}, 'seed': 1}
    """
    found: dict[str, Any] = {}
    for name, value in changes:
        *path, last = name.split(".")
        inner = found
        for part in path:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return found


def merged(*parts: dict[str, Any]) -> dict[str, Any]:
    """Nested settings, later ones over earlier ones."""
    found: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            both = isinstance(value, dict) and isinstance(found.get(name), dict)
            found[name] = merged(found[name], value) if both else value
    return found
