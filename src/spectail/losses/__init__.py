"""Losses: one per file, each for hard, soft and mixed labels and with class weights that a schedule may change."""

from .balanced_softmax import BalancedSoftmaxLoss
from .class_balanced import ClassBalancedLoss, effective_number_weights
from .cross_entropy import CrossEntropyLoss
from .focal import FocalLoss
from .geometric_mean import GeometricMeanLoss
from .ldam import LDAMLoss
from .over_smooth import LabelOverSmoothLoss

__all__ = [
    "BalancedSoftmaxLoss", "ClassBalancedLoss", "CrossEntropyLoss", "FocalLoss", "GeometricMeanLoss",
    "LDAMLoss", "LabelOverSmoothLoss", "effective_number_weights",
]  # fmt: skip
