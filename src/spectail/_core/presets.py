"""The named settings of CAR."""

from __future__ import annotations

from typing import Any, NamedTuple


class Preset(NamedTuple):
    """A setting of CAR under a name: the weight of the regulariser in a loss, and its options."""

    alpha: float
    options: dict[str, Any]
    tau: float | None = None
    """Shift of the logits by the prior, for presets that go with Balanced Softmax."""


_CLASSWISE: dict[str, Any] = {"beta": 0.9, "ema": "class", "competitors": "non-target", "gamma": 2.0}
_BALANCED = _CLASSWISE | {"gamma": 4.0, "r0": 0.01}
PRESETS = {
    "paper": Preset(0.5, {}),
    "reference": Preset(
        0.3,
        {"beta": 0.9, "normalize_weights": True, "gate_grad": False, "baseline_grad": False, "ema_start": "first"},
    ),
    "classwise": Preset(10.0, _CLASSWISE),  # its gradient carries the factor 1 - beta = 0.1
    "balanced": Preset(1.0, _BALANCED, tau=0.75),  # this and the next: chosen on validation data
    "worst": Preset(3.0, _BALANCED | {"ema_start": "first", "norm": "worst", "sharpness": 20.0}, tau=0.75),
}
"""What the class methods, the training engine and the documentation mean by a preset."""
