"""The networks that the bound speaks about: weight matrices with ReLU in between, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

ALLOWED = "nn.Linear layers with one nn.ReLU between each two, after an optional nn.Flatten, in an nn.Sequential"


class Network(NamedTuple):
    """A feed-forward ReLU network as its weight matrices, float64 on the CPU.

    ``folded`` says that biases were written into the matrices: inputs get a coordinate that is always 1, and every
    hidden layer hands it on. The function is the same, and no bias is left.
    """

    matrices: tuple[Tensor, ...]
    folded: bool
    flatten: bool

    @property
    def width(self) -> int:
        """The largest side of any weight matrix, input and output included."""
        return max(max(matrix.shape) for matrix in self.matrices)

    def inputs(self, features: Tensor) -> Tensor:
        """Samples as the first matrix takes them: (N, d) float64."""
        rows = features.detach().cpu().double()
        rows = rows.flatten(1) if self.flatten else rows
        return torch.cat([rows, rows.new_ones(len(rows), 1)], 1) if self.folded else rows

    def logits(self, inputs: Tensor) -> Tensor:
        for index, matrix in enumerate(self.matrices):
            inputs = (inputs if index == 0 else inputs.relu()) @ matrix.T
        return inputs

    def check(self, features: Tensor) -> None:
        """Raises unless these samples fit."""
        if not isinstance(features, Tensor) or not features.is_floating_point() or features.ndim < 2:
            got = (
                f"{tuple(features.shape)} {features.dtype}" if isinstance(features, Tensor) else type(features).__name__
            )
            raise TypeError(f"features must be a floating-point tensor, one sample per row; got {got}.")
        size = self.matrices[0].shape[1] - self.folded
        if features.ndim > 2 and not self.flatten:
            raise ValueError(
                f"features have shape {tuple(features.shape)} and the model has no nn.Flatten; "
                "put one first, or pass features of shape (N, d)."
            )
        if features[:1].numel() != size * len(features[:1]):
            raise ValueError(
                f"the model takes {size} numbers per sample; features of shape {tuple(features.shape)} have "
                f"{features[0].numel()}."
            )


def read_network(model: nn.Module) -> Network:
    """The weight matrices of a feed-forward ReLU network; anything else is refused.

    Example:
        >>> net = read_network(nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
        >>> [tuple(matrix.shape) for matrix in net.matrices], net.folded
        ([(9, 5), (3, 9)], True)
        >>> read_network(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)))
        Traceback (most recent call last):
        ...
        TypeError: the bound holds for nn.Linear layers with one nn.ReLU between each two, after an optional \
nn.Flatten, in an nn.Sequential; layer 1 here is Tanh.
    """
    layers = list(_layers(model))
    first = layers[0] if layers else None
    flatten = isinstance(first, nn.Flatten)
    if isinstance(first, nn.Flatten) and (first.start_dim, first.end_dim) != (1, -1):
        raise TypeError(
            f"nn.Flatten must keep the samples apart, start_dim=1 and end_dim=-1; got {first.start_dim} and "
            f"{first.end_dim}."
        )
    body = layers[flatten:]
    for index, layer in enumerate(body):
        if not (_is_linear(layer) if index % 2 == 0 else isinstance(layer, nn.ReLU)):
            raise TypeError(f"the bound holds for {ALLOWED}; layer {index + flatten} here is {type(layer).__name__}.")
    if len(body) % 2 == 0:
        problem = "has no layer" if not body else "ends with ReLU"
        raise TypeError(f"the bound holds for {ALLOWED}; this model {problem}.")
    linear = [layer for layer in body if isinstance(layer, nn.Linear)]
    folded = any(layer.bias is not None for layer in linear)
    matrices = [_matrix(layer, folded, last=layer is linear[-1]) for layer in linear]
    for index, (matrix, following) in enumerate(pairwise(matrices)):
        if matrix.shape[0] != following.shape[1]:
            raise ValueError(
                f"linear layer {index} gives {linear[index].out_features} numbers and the next one takes "
                f"{linear[index + 1].in_features}: they must agree."
            )
    for index, matrix in enumerate(matrices):
        if not bool(matrix.isfinite().all()):
            raise ValueError(f"linear layer {index} has weights that are NaN or infinite: nothing can be bounded.")
        if not bool(matrix.any()):
            raise ValueError(f"linear layer {index} is all zero: its norm ratio does not exist. Train the model first.")
    return Network(tuple(matrices), folded, flatten)


def _layers(model: nn.Module) -> Iterator[nn.Module]:
    """Layers in order, with nested nn.Sequential opened."""
    if type(model) is nn.Sequential:
        for child in model:
            yield from _layers(child)
    else:
        yield model


def _is_linear(layer: nn.Module) -> bool:
    """A subclass may be anything; one that computes as nn.Linear does is one."""
    return isinstance(layer, nn.Linear) and type(layer).forward is nn.Linear.forward


def _matrix(layer: nn.Linear, folded: bool, last: bool) -> Tensor:
    weight = layer.weight.detach().cpu().double()
    if not folded:
        return weight
    bias = weight.new_zeros(len(weight)) if layer.bias is None else layer.bias.detach().cpu().double()
    matrix = torch.cat([weight, bias[:, None]], 1)
    if last:
        return matrix
    constant = weight.new_zeros(1, matrix.shape[1])
    constant[0, -1] = 1  # ReLU leaves it 1
    return torch.cat([matrix, constant])
