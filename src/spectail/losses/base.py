"""What the losses share: kinds of labels, class weights, averaging, full precision."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..targets import MixedTarget, check_target

Target = Tensor | MixedTarget


class LabelLoss(nn.Module):
    """A loss that is known once the label is: subclasses say what each label would cost, ``costs(logits)`` of (N, K).

    From that follow hard labels (one entry of a row), soft labels (the expected entry) and mixed labels, and class
    weights that a schedule may change with :meth:`set_weight`.

    Args:
        weight: (K,) weights of the classes, or None.
        average: ``"weights"`` divides by the sum of the weights in the batch, as torch does; ``"samples"`` by the
            number of samples. Without weights they are the same.
        ignore_index: hard labels to leave out.
    """

    weight: Tensor | None

    def __init__(self, weight: Tensor | None = None, average: str = "weights", ignore_index: int = -100) -> None:
        super().__init__()
        if average not in ("weights", "samples"):
            raise ValueError(f"average must be 'weights' or 'samples'; got {average!r}.")
        self.average, self.ignore_index = average, ignore_index
        self.register_buffer("weight", None if weight is None else torch.as_tensor(weight, dtype=torch.float32))

    def costs(self, logits: Tensor) -> Tensor:
        """(N, K): the loss of each sample for each label."""
        raise NotImplementedError

    def set_weight(self, weight: Tensor | None) -> None:
        """Change the class weights, as deferred re-weighting does; None for none."""
        self.weight = None if weight is None else torch.as_tensor(weight, dtype=torch.float32)

    def _load_from_state_dict(self, state: dict[str, Tensor], prefix: str, *rest: object) -> None:
        """Weights may have been set or removed since this loss was built."""
        saved = state.get(prefix + "weight")
        if (saved is None) != (self.weight is None):
            self.weight = None if saved is None else torch.empty_like(saved)
        super()._load_from_state_dict(state, prefix, *rest)

    def forward(self, logits: Tensor, target: Target) -> Tensor:
        check_target(target, logits.shape[0], logits.shape[1], self.ignore_index)
        with torch.autocast(logits.device.type, enabled=False):
            return self._average(self.costs(logits if logits.dtype == torch.float64 else logits.float()), target)

    def _average(self, costs: Tensor, target: Target) -> Tensor:
        weight = None if self.weight is None else self.weight.to(costs)
        if isinstance(target, Tensor) and target.ndim == 2:
            mass = target.to(costs) if weight is None else target.to(costs) * weight
            divisor = mass.sum() if self.average == "weights" and weight is not None else costs.new_tensor(len(costs))
            return (mass * costs).sum() / divisor.clamp_min(torch.finfo(costs.dtype).tiny)
        if isinstance(target, Tensor):
            labels, shares = [target.long()], None  # before comparing: a byte would wrap -100 round to 156
        else:
            labels, shares = [target.a.long(), target.b.long()], [target.share.to(costs), 1 - target.share.to(costs)]
        kept = labels[0] != self.ignore_index
        for label in labels[1:]:
            kept = kept & (label != self.ignore_index)
        total, divisor = costs.new_zeros(()), costs.new_zeros(())
        for place, label in enumerate(labels):
            safe = label.where(kept, 0)
            share = kept.to(costs.dtype) if shares is None else shares[place].where(kept, 0)
            weighted = share if weight is None else share * weight[safe]
            total = total + costs.gather(1, safe[:, None]).squeeze(1) @ weighted
            divisor = divisor + (weighted if self.average == "weights" else share).sum()
        return total / divisor.clamp_min(torch.finfo(costs.dtype).tiny)
