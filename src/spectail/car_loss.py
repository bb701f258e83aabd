"""A loss that adds CAR to any other."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ._core.distributed import Sync
from ._utils.checks import check_number
from ._utils.names import nearest
from .car import CAR, PRESETS
from .counts import CountsLike
from .targets import MixedTarget, Target

BALANCED_TAU, WORST_TAU = (PRESETS[name].tau or 0.0 for name in ("balanced", "worst"))


class CARLoss(nn.Module):
    """Any classification loss plus ``alpha`` times CAR.

    Args:
        class_counts: training images per class.
        alpha: weight of the regulariser, 0 or more.
        base: a loss ``(logits, target) -> scalar`` that averages over samples; None is cross entropy, for hard, soft
            and mixed labels.
        start_step: training steps before the regulariser has any weight; its history fills meanwhile.
        warmup_steps: steps over which the weight then rises linearly to alpha.
        shift_base: compute the cross entropy from the logits that CAR sees, with ``prior_shift * log(n_j / N)`` added,
            which makes it Balanced Softmax.
        **options: everything :class:`CAR` takes.

    After each call ``criterion.parts`` holds the detached ``base``, ``car`` and ``alpha`` of that call.

    State and distributed:
        The history and the step count are in ``state_dict``. With several ranks and batches of unequal size the base
        loss is scaled by this rank's share of the samples, so that averaged gradients equal those of one process.
        Under gradient accumulation divide the returned loss by the number of micro-batches, as for any mean loss:
        the history moves at every micro-batch, and the gradient is the mean of theirs.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> criterion = CARLoss([500, 50, 5], alpha=0.5)
        >>> loss = criterion(torch.randn(8, 3), torch.arange(8) % 3)
        >>> sorted(criterion.parts)
        ['alpha', 'base', 'car']
    """

    step: Tensor

    def __init__(
        self,
        class_counts: CountsLike,
        alpha: float = 0.5,
        base: Callable[[Tensor, Any], Tensor] | None = None,
        *,
        start_step: int = 0,
        warmup_steps: int = 0,
        shift_base: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        check_number(alpha=alpha, start_step=start_step, warmup_steps=warmup_steps)
        if not 0 <= alpha < float("inf"):
            raise ValueError(f"alpha must be 0 or more; got {alpha}.")
        if not (0 <= start_step < 2**53 and 0 <= warmup_steps < 2**53):  # also refuses NaN
            raise ValueError(f"start_step and warmup_steps must be 0 or more; got {start_step} and {warmup_steps}.")
        if base is not None and not callable(base):
            raise TypeError(f"base must be callable as base(logits, target); got {type(base).__name__}.")
        if base is not None and shift_base:
            raise ValueError(
                "shift_base is for the cross entropy of CARLoss itself; shift the logits inside base instead."
            )
        check_options(options)
        self.car = CAR(class_counts, **options)
        self.alpha, self.base = float(alpha), base
        self.start_step, self.warmup_steps, self.shift_base = start_step, warmup_steps, bool(shift_base)
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))
        self.parts: dict[str, Tensor] = {}

    @classmethod
    def reference(cls, class_counts: CountsLike, **options: Any) -> CARLoss:
        """The settings of the authors' released script, alpha 0.3."""
        return cls._preset("reference", class_counts, options)

    @classmethod
    def classwise(cls, class_counts: CountsLike, **options: Any) -> CARLoss:
        """Class-wise averaging with a margin, alpha 10: its gradient carries the factor 1 - beta = 0.1."""
        return cls._preset("classwise", class_counts, options)

    @classmethod
    def balanced(cls, class_counts: CountsLike, tau: float = BALANCED_TAU, **options: Any) -> CARLoss:
        """Balanced Softmax + CAR, both on logits with tau * log(n_j / N) added: the method ``car-balanced``.

        Inference takes the logits as they are.
        """
        return cls._shifted("balanced", class_counts, tau, options)

    @classmethod
    def worst(cls, class_counts: CountsLike, tau: float = WORST_TAU, **options: Any) -> CARLoss:
        """Like :meth:`balanced`, but with a soft maximum of the class errors: the method ``car-worst``."""
        return cls._shifted("worst", class_counts, tau, options)

    @classmethod
    def _shifted(cls, name: str, class_counts: CountsLike, tau: float, options: dict[str, Any]) -> CARLoss:
        if options.get("base") is not None:
            raise ValueError(f"CARLoss.{name} has a loss of its own, Balanced Softmax; leave base out.")
        if "prior_shift" in options:
            raise ValueError(f"prior_shift of CARLoss.{name} must be given as tau; got {options['prior_shift']}.")
        return cls._preset(name, class_counts, {"prior_shift": tau, "shift_base": True, **options})

    @classmethod
    def _preset(cls, name: str, class_counts: CountsLike, options: dict[str, Any]) -> CARLoss:
        preset = PRESETS[name]
        return cls(class_counts, **{"alpha": preset.alpha, **preset.options, **options})

    def forward(self, logits: Tensor, target: Target, *, sync: Sync | None = None) -> Tensor:
        """The loss. ``sync=False`` is for a call that not every rank makes."""
        car = self.car
        shares = self.base is None and (self.shift_base or not car.prior_shift)  # one softmax for both
        value, share, base = car._measure(logits, target, sync, self._alpha if shares else None)
        alpha = self._alpha(value)
        if base is not None and car.last is not None:
            loss, penalty = value, car.last.value
        else:
            base, penalty = self._base(logits, target, share), value
            loss, base, penalty = base + alpha * penalty, base.detach(), penalty.detach()
        if self.training and torch.is_grad_enabled():
            self.step.add_(1)
        self.__dict__["parts"] = {"base": base, "car": penalty, "alpha": torch.as_tensor(alpha)}
        return loss

    def _base(self, logits: Tensor, target: Target, share: Tensor | float) -> Tensor:
        if self.base is not None:
            base: Tensor = self.base(logits, target)
        else:
            scores = self.car.shifted(logits) if self.shift_base else logits
            base = cross_entropy(scores, target, self.car.ignore_index)
        if isinstance(share, Tensor):  # of several ranks, on a device that is not asked for it
            return base * share if len(logits) else logits.sum() * 0
        if share != 1.0:
            return base * share if share else logits.sum() * 0  # a mean over no sample is NaN
        return base

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        if self.car.history.refusal(state_dict, f"{prefix}car.history.") is None:  # else it says why, nothing is loaded
            super()._load_from_state_dict(state_dict, prefix, *args)

    def _alpha(self, like: Tensor) -> Tensor | float:
        if not self.start_step and not self.warmup_steps:
            return self.alpha
        if self.step.device != like.device:
            self.step = self.step.to(like.device)
        progress = (self.step - self.start_step + 1) / max(self.warmup_steps, 1)
        return self.alpha * progress.clamp(0, 1).to(like.dtype)


def check_options(options: Iterable[str]) -> None:
    """Say what to write in place of an option that CAR does not have; many are those of torch's cross entropy."""
    known = [name for name in inspect.signature(CAR).parameters if name != "class_counts"]
    for name in options:
        if name in ("label_smoothing", "weight"):
            advice = f"It belongs to the loss beside CAR: base=torch.nn.CrossEntropyLoss({name}=...)."
        elif name == "reduction":
            advice = "The loss is a mean over the batch, and CAR has one value for all of it; leave it out."
        else:
            advice = nearest(name, [*known, "alpha", "base", "start_step", "warmup_steps", "shift_base"])
        if name not in known:
            raise TypeError(f"CARLoss has no option {name!r}; {advice[0].lower()}{advice[1:]}")


def cross_entropy(logits: Tensor, target: Target, ignore_index: int = -100) -> Tensor:
    """Cross entropy for hard, soft and mixed labels, averaged over samples; 0 if all are ignored."""
    scores = logits if logits.dtype == torch.float64 else logits.float()
    if isinstance(target, MixedTarget):
        share = target.share.to(scores.dtype)
        losses = (
            F.cross_entropy(scores, label, ignore_index=ignore_index, reduction="none")
            for label in (target.a, target.b)
        )
        first, second = losses
        mixed: Tensor = share * first + (1 - share) * second
        kept = (target.a != ignore_index) & (target.b != ignore_index)
        return mixed.where(kept, 0).sum() / kept.sum().clamp_min(1)
    if target.ndim == 2:
        return F.cross_entropy(scores, target.to(scores.dtype))
    target = target.long()
    total = F.cross_entropy(scores, target, ignore_index=ignore_index, reduction="sum")
    return total / (target != ignore_index).sum().clamp_min(1)
