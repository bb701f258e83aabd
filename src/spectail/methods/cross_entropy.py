"""Cross entropy, the baseline, which overrides nothing; and the same with CAR, which the loop adds."""

from __future__ import annotations

from .base import About
from .deferred import Deferrable, LossOptions


class CrossEntropy(Deferrable):
    about = About()
    options = LossOptions()


class CrossEntropyCAR(CrossEntropy):
    about = About("regulariser", "CVPR 2026", "class counts", "less than 2 % of a ResNet-32 step")
