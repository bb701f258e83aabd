"""What tables call their figures, and the distances from the line of Balanced Softmax that they can show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

WORDS = {"overall": "overall", "balanced": "mean of classes", "tail": "tail", "worst_test": "worst class",
         "bottom_10pct": "lowest 10 %", "bottom_20pct": "lowest 20 %"}  # fmt: skip


@dataclass(frozen=True)
class Distance:
    """How far a point or a line lies above the reference line."""

    rule: Literal["same", "best", "shifted"]
    kept: str
    """The figure in which both are alike."""
    what: str
    """The figure that is compared then."""

    @property
    def metric(self) -> str:
        return f"above_{self.rule}_{self.kept}_{self.what}"

    @property
    def title(self) -> str:
        kept, what = (WORDS[name.removeprefix("val_")] for name in (self.kept, self.what))
        val = "val " if self.kept.startswith("val_") else ""
        words = {
            "same": f"{what} above the line, same {kept}",
            "best": f"{what} above the best of the line, {kept} no worse",
            "shifted": f"{what} above Balanced Softmax, shifted to its {kept}",
        }
        return val + words[self.rule]


_TEST = (
    *(Distance("same", "tail", what) for what in ("overall", "bottom_10pct", "bottom_20pct", "worst_test")),
    *(Distance("same", kept, "overall") for kept in ("bottom_10pct", "bottom_20pct", "worst_test")),
    Distance("best", "tail", "overall"),
    *(Distance("shifted", "tail", what) for what in ("overall", "bottom_10pct", "bottom_20pct")),
)
DISTANCES = (
    *_TEST,
    *(
        Distance(one.rule, f"val_{one.kept}", f"val_{one.what.replace('overall', 'balanced')}")
        for one in _TEST
        if "worst_test" not in (one.kept, one.what)  # of held-out images a class may have one
    ),
)
TITLES = {"worst_test": "worst class", "worst_train": "worst in training", "worst_ratio": "WR",
          "bottom_10pct": "lowest 10 %", "bottom_20pct": "lowest 20 %", "zero_classes": "classes at 0",
          "ece": "ECE", "cm_gap": "CM gap", "cm_gap_relative": "CM gap, relative",
          "car_gradient_norm": "gradient norm of CAR", "late_gain": "gained in the last fifth",
          "steps": "steps"}  # fmt: skip
TITLES |= {distance.metric: distance.title for distance in DISTANCES}
for _kept, _words in {"tail": "tail", "bottom_10pct": "lowest 10 %"}.items():  # of older files: a training for each tau
    TITLES[f"gain_same_{_kept}"] = f"above tau line, same {_words}"
    TITLES[f"gain_best_{_kept}"] = f"above best tau, {_words} no worse"
