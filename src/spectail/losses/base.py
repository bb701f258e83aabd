"""What the losses share: kinds of labels, class weights, averaging, full precision."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .._core.distributed import find_group, summed
from .._core.dtypes import at_least_single
from .._utils.checks import check_choice
from ..targets import MixedTarget, check_target, check_target_values

Target = Tensor | MixedTarget


class WeightedLoss(nn.Module):
    """Class weights that a schedule may change, and checks of what a loss was made for."""

    weight: Tensor | None

    def __init__(self, weight: Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("weight", None if weight is None else torch.as_tensor(weight, dtype=torch.float32))

    def set_weight(self, weight: Tensor | None) -> None:
        """Change the class weights, as deferred re-weighting does; None for none."""
        self.weight = None if weight is None else torch.as_tensor(weight, dtype=torch.float32)

    def _load_from_state_dict(self, state: dict[str, Tensor], prefix: str, *rest: object) -> None:
        """Weights may have been set or removed since this loss was built."""
        saved = state.get(prefix + "weight")
        if (saved is None) != (self.weight is None):
            self.weight = None if saved is None else torch.empty_like(saved)
        super()._load_from_state_dict(state, prefix, *rest)

    def check(self, logits: Tensor) -> None:
        """Logits of the classes that this loss has counts and weights for."""
        if not isinstance(logits, Tensor):
            raise TypeError(f"logits must be a tensor of shape (N, K); got {type(logits).__name__}.")
        if logits.ndim != 2:
            raise ValueError(f"logits must have shape (N, K); got {tuple(logits.shape)}.")
        for name, values in self.named_buffers(recurse=False):
            if values.shape != logits.shape[1:]:
                raise ValueError(
                    f"{'weight' if name == 'weight' else 'class_counts'} must have one entry per class, for "
                    f"{logits.shape[1]} classes in the logits; got shape {tuple(values.shape)}."
                )


class LabelLoss(WeightedLoss):
    """A loss that follows from the logits and the label of each sample: subclasses say what every label would cost,
    ``costs(logits)`` of shape (N, K).

    Hard labels (one entry of a row), soft labels (the expected entry) and mixed labels follow from it, and so do class
    weights, which a schedule may change with :meth:`set_weight`.

    Args:
        weight: (K,) weights of the classes, or None.
        average: ``"weights"`` divides by the sum of the weights in the batch, as torch does; ``"samples"`` by the
            number of samples; ``"terms"`` is like ``"weights"``, but divides each of the two terms of mixed labels by
            the weights of its own labels, whatever their share. Without weights the three are the same.
        ignore_index: hard labels to leave out.

    State and distributed: the weights are a buffer. With ``sync = True`` (set by the training engine) the sum of the
    weights is that of the batches of all ranks, so that averaged gradients are those of one process; every rank must
    then call the loss. It is exact unless ranks ignore different numbers of labels.
    """

    def __init__(self, weight: Tensor | None = None, average: str = "weights", ignore_index: int = -100) -> None:
        super().__init__(weight)
        check_choice("average", average, ("weights", "samples", "terms"))
        self.average, self.ignore_index, self.sync = average, ignore_index, False
        self.smoothing = 0.0
        """Share of the label mass that is spread over all classes (label smoothing)."""

    def costs(self, logits: Tensor) -> Tensor:
        """(N, K): the loss of each sample for each label."""
        raise NotImplementedError

    def class_weights(self) -> Tensor | None:
        """(K,) weights in force."""
        return self.weight

    def forward(self, logits: Tensor, target: Target) -> Tensor:
        self.check(logits)
        check_target(target, logits.shape[0], logits.shape[1], self.ignore_index)
        logits = at_least_single(logits)
        try:
            if not torch.is_autocast_enabled(logits.device.type):
                return self._value(logits, target)
            with torch.autocast(logits.device.type, enabled=False):
                return self._value(logits, target)
        except (RuntimeError, IndexError):  # looked at now, and not in every step, which would wait for a device
            check_target_values(target, logits.shape[1], self.ignore_index)
            raise

    def _value(self, logits: Tensor, target: Target) -> Tensor:
        costs = self.costs(logits)
        if self.smoothing:
            costs = torch.lerp(costs, costs.mean(1, keepdim=True), self.smoothing)
        return self._average(costs, target)

    def _average(self, costs: Tensor, target: Target) -> Tensor:
        weight = self.class_weights()
        weight = None if weight is None else weight.to(costs)
        if isinstance(target, Tensor) and target.ndim == 2:
            mass = target.to(costs) if weight is None else target.to(costs) * weight
            total, weights, samples = (mass * costs).sum(), mass.sum(), costs.new_full((), len(costs))
            return self._ratio(total, samples if weight is None else weights, samples)
        if isinstance(target, Tensor):
            labels = target.long()  # before comparing: a byte would wrap -100 round to 156
            kept = labels != self.ignore_index
            safe, share = labels.where(kept, 0), kept.to(costs.dtype)
            weighted = share if weight is None else share * weight[safe]
            samples = share.sum()
            weights = samples if weight is None else weighted.sum()
            return self._ratio(costs.gather(1, safe[:, None]).squeeze(1) @ weighted, weights, samples)
        first, second, share = target.a.long(), target.b.long(), target.share.to(costs)
        kept = (first != self.ignore_index) & (second != self.ignore_index)
        total, weights, samples = costs.new_zeros(()), costs.new_zeros(()), kept.to(costs.dtype).sum()
        terms = costs.new_zeros(())
        for label, mass in ((first, share), (second, 1 - share)):
            safe, part = label.where(kept, 0), mass.where(kept, 0)
            weighted = part if weight is None else part * weight[safe]
            term = costs.gather(1, safe[:, None]).squeeze(1) @ weighted
            if self.average == "terms" and weight is not None:
                terms = terms + self._ratio(term, weight[safe].where(kept, 0).sum(), samples)
            total = total + term
            weights = weights + weighted.sum()
        if self.average == "terms" and weight is not None:
            return terms
        return self._ratio(total, samples if weight is None else weights, samples)

    def _ratio(self, total: Tensor, weights: Tensor, samples: Tensor) -> Tensor:
        if self.average == "samples" or weights is samples:
            return total / or_one(samples)
        if not self.sync or find_group("auto") is None:
            return total / or_one(weights)
        everyone = summed(weights, samples)
        return total / or_one(samples * (everyone[0] / or_one(everyone[1])))


def or_one(divisor: Tensor) -> Tensor:
    """Nothing divided by nothing is nothing; a tiny divisor would overflow in a scaled gradient."""
    return divisor.where(divisor > 0, 1)


def log_others(logits: Tensor) -> Tensor:
    """(N, K): log of the summed exponentials of all logits but k, without the loss of digits of log(1 - p_k).

    Example:
        >>> log_others(torch.tensor([[50.0, 0.0, 0.0]]))[0, :2]
        tensor([ 0.6931, 50.0000])
    """
    if logits.shape[1] == 1:
        return torch.full_like(logits, -torch.inf)
    total = logits.logsumexp(1, keepdim=True)
    top = torch.zeros_like(logits, dtype=torch.bool).scatter_(1, logits.argmax(1, keepdim=True), True)
    share = (logits - total).exp().masked_fill(top, 0.0)  # at most one half everywhere but at the top
    rest = logits.masked_fill(top, -torch.inf).logsumexp(1, keepdim=True)
    return torch.where(top, rest, total + torch.log1p(-share))
