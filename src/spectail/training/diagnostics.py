"""What CAR does to the weights, and how well its history knows the training set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from ..car import CAR
from ..data.loader import Loader
from ..theory.gap import data_confusion


def car_gradient(model: nn.Module, car: CAR, batches: Loader) -> float:
    """Norm of the gradient of CAR alone, with weight 1, with respect to the model, on the first of these batches.

    CAR is in evaluation mode for it, so its history does not move.
    """
    batch = next(iter(batches))
    modes = model.training, car.training
    model.eval()  # batch statistics and dropout must not notice
    car.eval()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(car(model(batch.images), batch.labels), parameters, allow_unused=True)
    model.train(modes[0])
    car.train(modes[1])
    return float(torch.stack([gradient.norm() for gradient in gradients if gradient is not None]).norm())


@torch.no_grad()
def cm_gap(model: nn.Module, car: CAR, batches: Loader, groups: Mapping[str, Sequence[int]]) -> dict[str, float]:
    """Frobenius distance between CAR's history and the soft confusion of the whole training set in evaluation mode;
    and the soft error of the classes of each group there, which is what CAR has to act on.

    With ``norm="worst"``, whose history is the error of each class, the distance between these.
    """
    was_training = model.training
    model.eval()
    whole = data_confusion(car, ((model(batch.images), batch.labels) for batch in batches))
    model.train(was_training)
    errors = whole.sum(0)
    running = car.confusion if car.norm == "spectral" else car.errors
    whole = whole if car.norm == "spectral" else errors
    distance = float((running.cpu().double() - whole).norm())
    found = {"cm_gap": distance, "cm_gap_relative": distance / max(float(whole.norm()), 1e-12)}
    return found | {f"confusion_{group}": float(errors[list(own)].mean()) for group, own in groups.items() if own}
