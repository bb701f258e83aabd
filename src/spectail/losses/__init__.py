"""Losses for long-tailed training, one per file. All take hard, soft and mixed labels and changing class weights."""

from .balanced_softmax import BalancedSoftmaxLoss
from .cross_entropy import CrossEntropyLoss

__all__ = ["BalancedSoftmaxLoss", "CrossEntropyLoss"]
