"""What CAR does to the weights, and how well its history knows the training set."""

from __future__ import annotations

import torch
from torch import nn

from ..car import CAR
from ..data.loader import Loader
from ..functional import soft_confusion


def regulariser_gradient(model: nn.Module, car: CAR, batches: Loader) -> float:
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
def cm_gap(model: nn.Module, car: CAR, batches: Loader) -> dict[str, float]:
    """Frobenius distance between CAR's history and the soft confusion of the whole training set in evaluation mode."""
    size = car.num_classes
    total = torch.zeros(size, size, dtype=torch.float64)
    seen = torch.zeros(size, dtype=torch.float64)
    was_training = model.training
    model.eval()
    kind = car.kind
    for batch in batches:
        logits = model(batch.images) + car.prior_shift * car.log_prior
        confusion = soft_confusion(
            logits,
            batch.labels,
            gamma=kind.gamma,
            competitors=kind.competitors,
            surrogate=kind.form,
            temperature=kind.temperature,
        )
        here = torch.bincount(batch.labels, minlength=size).cpu().double()
        total += confusion.cpu().double() * here  # its columns are means over the batch
        seen += here
    model.train(was_training)
    total /= seen.clamp(min=1)
    distance = float((car.confusion.cpu().double() - total).norm())
    return {"cm_gap": distance, "cm_gap_relative": distance / max(float(total.norm()), 1e-12)}
