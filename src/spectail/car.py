"""CAR, the confusion-aware spectral regulariser, and a loss that adds it to any other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from .attach import Attach, AttachOnce
from .batch import BatchConfusion
from .counts import CountsLike, as_counts, check_number
from .distributed import Sync, check_sync, exchange_mass, find_group
from .functional import class_weights
from .history import LIVE_FROM, History, add_columns, at_least_single
from .scratch import Scratch
from .spectral import CHAIN, Triplet, chain, exact, squared, track
from .surrogate import Surrogate
from .targets import MIXED_MODES, MixedTarget, Target, check_finite, check_target, check_target_values, entries

SQUARE_UP_TO = 160  # classes; up to here squaring the matrix is faster than searching it
SCRATCH_FROM = 1 << 16  # logits in a batch; smaller tensors stay with the allocator anyway
SVD_UP_TO = 40  # classes; below this the full SVD is the fastest solver on a CPU

REFERENCE: dict[str, Any] = {"beta": 0.9, "normalize_weights": True, "gate_grad": False, "ema_start": "first"}
CLASSWISE: dict[str, Any] = {"beta": 0.9, "ema": "class", "competitors": "non-target", "gamma": 2.0}
BALANCED: dict[str, Any] = CLASSWISE | {"gamma": 4.0, "r0": 0.01}
"""Chosen on validation data, with alpha and tau: docs/results.md."""
BALANCED_ALPHA, BALANCED_TAU = 1.0, 0.75


class CAR(nn.Module):
    r"""Confusion-aware spectral regulariser: the spectral norm of a running, class-weighted confusion matrix.

    .. math:: R_t = \lVert \hat C_t \Lambda \rVert_2, \qquad
              \hat C_t = \beta\,\hat C_{t-1} + (1-\beta)\,\tilde C_t, \qquad
              \lambda_j = (n_j / N + r_0)^{-1/2}

    where :math:`\tilde C_t` is :func:`spectail.functional.soft_confusion` of the batch. Gradients flow through
    :math:`\tilde C_t` only. Add ``alpha * car(logits, target)`` to the loss, or use :class:`CARLoss`.

    Args:
        class_counts: training images per class: a list, a tensor or :class:`~spectail.ClassCounts`.
        beta: share of the history that survives a step, in [0, 1); 0 is the ablation without averaging.
        r0: smoothing of the class weights, above 0.
        gamma: margin inside the gate, in logit units.
        competitors: ``"all"`` (the paper's formula) or ``"non-target"`` (its text); see ``soft_confusion``.
        ema: ``"batch"`` averages the batch's whole matrix, in which absent classes are 0 (the paper).
            ``"class"`` averages each column over the batches that contain its class and leaves the others alone.
        ema_start: ``"zero"``, or ``"first"``: the first estimate of a column seeds it, without gradient.
        gate_grad: False stops the gradient through the gate.
        weighting: ``"frequency"``, or None for the ablation with all weights 1.
        normalize_weights: divide the weights by their mean.
        prior_shift: adds this times log(n_j / N) to the logits first; 1 goes with Balanced Softmax.
        surrogate: ``"full"`` or an ablation, see ``soft_confusion``.
        mixed: how a :class:`~spectail.MixedTarget` counts, see ``soft_confusion``.
        solver: ``"auto"``, ``"iterative"`` or ``"svd"``. Auto takes the SVD up to 40 classes on a CPU.
        sync: ``"auto"`` uses the global batch whenever torch.distributed runs; False works alone; a process group
            names the ranks that share a batch.
        on_empty: ``"ignore"`` accepts classes with 0 images.
        validate: label range and finite logits are checked on every call on a CPU. On an accelerator, where looking
            at values means waiting for them: ``"first"`` checks the first call, True every call, False none.
        ignore_index: samples with this label are left out. A batch in which nothing is left has the value 0 and leaves
            the history alone.

    Shape:
        logits (N, K); target (N,) class indices, (N, K) soft labels, or MixedTarget of N; result ().

    State and distributed:
        The history is in ``state_dict``, so a resumed run continues bit for bit; ``eval()`` and ``no_grad()`` never
        change it. It is kept in float32 at least, in float64 for float64 logits. With several ranks each computes the
        confusion of the global batch and holds the same history: the ranks exchange label mass per class and the
        columns of the classes present. Gradients are scaled so that averaging them over ranks, as DDP does, gives
        the gradient of one process with the whole batch; the value needs no averaging. The history moves once per
        forward in training mode.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> car = CAR([500, 50, 5])
        >>> logits = torch.randn(8, 3, requires_grad=True)
        >>> loss = F.cross_entropy(logits, torch.arange(8) % 3) + 0.5 * car(logits, torch.arange(8) % 3)
        >>> loss.backward()
        >>> car.confusion.shape, car.last.spectral_norm > 0
        (torch.Size([3, 3]), tensor(True))

    Reference: Confusion-Aware Spectral Regularizer, CVPR 2026.
    """

    weights: Tensor
    log_prior: Tensor

    def __init__(
        self,
        class_counts: CountsLike,
        *,
        beta: float = 0.5,
        r0: float = 0.2,
        gamma: float = 0.0,
        competitors: str = "all",
        ema: str = "batch",
        ema_start: str = "zero",
        gate_grad: bool = True,
        weighting: str | None = "frequency",
        normalize_weights: bool = False,
        prior_shift: float = 0.0,
        surrogate: str = "full",
        mixed: str = "masked",
        solver: str = "auto",
        sync: Sync = "auto",
        on_empty: str = "error",
        validate: bool | str = "first",
        ignore_index: int = -100,
    ) -> None:
        super().__init__()
        counts = as_counts(class_counts, on_empty)
        check_number(beta=beta, r0=r0, gamma=gamma, prior_shift=prior_shift)
        if not 0 <= beta < 1:
            raise ValueError(f"beta must lie in [0, 1): 0 keeps no history, 1 would never learn; got {beta}.")
        if not -float("inf") < prior_shift < float("inf"):
            raise ValueError(f"prior_shift must be a finite number; got {prior_shift}.")
        _choice("ema", ema, ("batch", "class"))
        _choice("ema_start", ema_start, ("zero", "first"))
        _choice("weighting", weighting, ("frequency", None))
        _choice("mixed", mixed, MIXED_MODES)
        _choice("solver", solver, ("auto", "iterative", "svd"))
        _choice("validate", validate, ("first", True, False))
        self.kind = Surrogate(float(gamma), competitors, bool(gate_grad), surrogate)
        self.num_classes = counts.num_classes
        self.beta, self.ema, self.ema_start = float(beta), ema, ema_start
        self.prior_shift, self.mixed, self.solver = float(prior_shift), mixed, solver
        self.sync, self.validate, self.ignore_index = check_sync(sync), validate, ignore_index
        self.counts, self.r0 = counts, float(r0)
        self.weighting, self.normalize_weights = weighting, bool(normalize_weights)
        weights, log_prior = self._constants(torch.float32)
        self.register_buffer("weights", weights, persistent=False)
        self.register_buffer("log_prior", log_prior, persistent=False)
        self.history = History(weights, live=ema == "batch" and self.num_classes > LIVE_FROM)
        self.last: Triplet | None = None
        self.share = 1.0
        self._checked = False
        self._scratch = Scratch()

    @classmethod
    def reference(cls, class_counts: CountsLike, **options: Any) -> CAR:
        """The settings of the authors' released script; ``options`` override them."""
        return cls(class_counts, **{**REFERENCE, **options})

    @classmethod
    def classwise(cls, class_counts: CountsLike, **options: Any) -> CAR:
        """Class-wise averaging with a margin: the estimator that works when classes outnumber the batch."""
        return cls(class_counts, **{**CLASSWISE, **options})

    def _constants(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Lambda and the log prior, in the precision of the logits."""
        weights = class_weights(self.counts, self.r0, self.normalize_weights, "ignore", dtype)
        prior = (self.counts.counts.clamp_min(1).double() / self.counts.total).log()  # an empty class as one image
        return weights if self.weighting else torch.ones_like(weights), prior.to(dtype)

    @property
    def confusion(self) -> Tensor:
        """The running confusion matrix, (K, K), rows predicted and columns true; detached, built on request."""
        return (self.history.dense() / self.weights[:, None].to(self.history.rows.dtype)).T

    def reset(self) -> None:
        """Forget the history."""
        self.history.reset(self.history.rows.dtype, self.history.rows.device)
        self.last = None

    def forward(self, logits: Tensor, target: Target, *, sync: Sync | None = None) -> Tensor:
        """The regulariser. ``sync=False`` is for a call that not every rank makes."""
        group = find_group(self.sync if sync is None else sync)
        compiling = torch.compiler.is_compiling()
        if group is not None and compiling:
            raise RuntimeError("CAR cannot synchronise ranks inside torch.compile: compile the model, not the loss.")
        commit = self.training and torch.is_grad_enabled()
        try:
            scores = self._scores(logits)
        except (TypeError, ValueError) as error:
            if group is not None:  # tell the others before raising
                exchange_mass(self.weights.new_zeros(self.num_classes), self.weights[0], error, group)
            raise
        with torch.no_grad(), _full_precision(scores.device):
            batch = self._read(scores.detach(), target, group)
            if batch.usable:
                step = self._static if compiling or scores.device.type != "cpu" else self._adaptive
                triplet, gain = step(batch, group, commit)
                self.last = triplet
                if not scores.requires_grad:
                    return triplet.spectral_norm
                right = triplet.right * gain
                if group is not None:  # DDP averages over ranks what must be added up
                    right *= dist.get_world_size(group)
                gradient = batch.gradient(triplet.left, right)
        if not batch.usable:
            return scores.sum() * 0
        if compiling:
            return cast(Callable[..., Tensor], Attach.apply)(scores, triplet.spectral_norm, gradient)
        attach = cast(Callable[..., Tensor], AttachOnce.apply)
        return attach(scores, triplet.spectral_norm, gradient, batch, triplet.left, right)

    def _scores(self, logits: Tensor) -> Tensor:
        """The logits CAR looks at: float32 at least, shifted by the prior, on the device of the state."""
        if not isinstance(logits, Tensor) or logits.ndim != 2 or not logits.is_floating_point():
            found = f"{tuple(logits.shape)} {logits.dtype}" if isinstance(logits, Tensor) else type(logits).__name__
            raise TypeError(f"logits must be a floating-point tensor of shape (N, {self.num_classes}); got {found}.")
        if logits.shape[1] != self.num_classes:
            raise ValueError(
                f"logits have {logits.shape[1]} classes and class_counts {self.num_classes}: "
                "they must describe the same classes."
            )
        if logits.device != self.weights.device:
            self.to(logits.device)
        wide = torch.float64 in (logits.dtype, self.history.rows.dtype)
        scores = logits.to(torch.float64 if wide else torch.float32)
        if scores.dtype != self.log_prior.dtype:
            self.weights, self.log_prior = (value.to(scores.device) for value in self._constants(scores.dtype))
        return scores + self.prior_shift * self.log_prior.to(scores.dtype) if self.prior_shift else scores

    def _read(self, scores: Tensor, target: Target, group: dist.ProcessGroup | None) -> BatchConfusion:
        """Check the batch and count its label mass; nothing has changed yet when this raises."""
        problem: Exception | None = None
        full = False
        mass = scores.new_zeros(self.num_classes)
        samples, self.share = mass[0], 1.0
        try:
            full = self._check(scores, target, alone=group is None)
            items = entries(target, self.num_classes, scores.dtype, self.mixed, self.ignore_index, full)
            mass.index_add_(0, items.label, items.mass)
            if group is not None:
                samples = _count(target, self.ignore_index)
        except (TypeError, ValueError) as error:
            problem = error
        if group is not None:
            mass, self.share = exchange_mass(mass, samples, problem, group)
        elif problem is not None:
            raise problem
        batch = BatchConfusion(scores, items, mass, self.kind)
        if scores.device.type == "cpu" and not torch.compiler.is_compiling():
            batch.usable = (full and self.mixed != "clean") or bool(mass.any())
            batch.scratch = self._scratch if scores.numel() > SCRATCH_FROM else None
        return batch

    def _check(self, scores: Tensor, target: Target, alone: bool) -> bool:
        """Raises for a batch that cannot be used; True says that no label is an ignored one."""
        check_target(target, scores.shape[0], self.num_classes)
        if scores.shape[0] == 0:
            if alone:
                raise ValueError("the batch is empty: CAR needs at least one sample.")
            return False
        if torch.compiler.is_compiling():
            return False
        if scores.device.type != "cpu" and (self.validate is False or (self.validate == "first" and self._checked)):
            return False
        none_ignored = check_target_values(target, self.num_classes, self.ignore_index)
        check_finite(scores)
        self._checked = True
        return none_ignored

    def _rates(self, history: History, dtype: torch.dtype) -> tuple[Tensor | float, Tensor, Tensor]:
        """How much of the batch enters the history; that times Lambda; and the part of it that carries gradient."""
        weights = self.weights.to(dtype)
        if self.ema_start == "zero":
            gain = weights * (1 - self.beta)
            return 1 - self.beta, gain, gain
        known = history.seen if self.ema == "class" else history.steps > 0
        rate = (1 - self.beta * known.to(dtype)).expand_as(weights)
        gain = weights * rate
        return rate, gain, gain * known

    def _adaptive(self, batch: BatchConfusion, group: dist.ProcessGroup | None, commit: bool) -> tuple[Triplet, Tensor]:
        """On a CPU: a lazy factor, only live classes stored, and as many iterations as this step needs."""
        history = self.history if commit else self.history.clone()
        history.convert(batch.scores.dtype)
        rate, gain, gradient_gain = self._rates(history, batch.scores.dtype)
        if self.ema == "batch":
            history.decay(self.beta)
        label, columns, share, pull = batch.columns(group)
        weight, fading = share * gain.index_select(0, label), self._fading(label, pull, rate)
        at = history.places(label)
        factor = float(history.factor)
        history.add(columns, at, weight / factor if factor != 1 else weight, fading, batch.scratch)
        if self.solver == "svd" or (self.solver == "auto" and self.num_classes <= SVD_UP_TO):
            found = exact(history.matrix)
        elif self.num_classes <= SQUARE_UP_TO:
            found = squared(history.matrix, at, history.basis[0])
            history.basis[0] = found.left
        else:
            steps = CHAIN if self.ema == "batch" else 0
            found = track(history.matrix, at, space=history.space, chain_steps=steps, scratch=batch.scratch)
        right = found.right
        if history.live:
            right = right.new_zeros(self.num_classes).index_copy_(0, history.classes, right)
        if commit:
            if self.ema_start == "first":
                history.note(batch.mass)
            history.tidy(found.spectral_norm)
        return found._replace(spectral_norm=found.spectral_norm * factor, right=right), gradient_gain

    def _static(self, batch: BatchConfusion, group: dist.ProcessGroup | None, commit: bool) -> tuple[Triplet, Tensor]:
        """On accelerators and under torch.compile: shapes and iterations never depend on values."""
        history = self.history
        if commit:
            history.convert(batch.scores.dtype)
            history.settle()
        rows = history.rows if commit else history.dense().to(batch.scores.dtype)
        rate, gain, gradient_gain = self._rates(history, rows.dtype)
        filled = batch.mass.sum() > 0  # a batch without a usable label must not decay the history
        if self.ema == "batch":
            rows.mul_(torch.where(filled, self.beta, 1.0).to(rows.dtype))
        label, columns, share, pull = batch.columns(group)
        weight, fading = share * gain.index_select(0, label), self._fading(label, pull, rate)
        add_columns(rows, columns, label, weight, fading)
        small = self.solver == "auto" and self.num_classes <= SVD_UP_TO and rows.device.type == "cpu"
        if self.solver == "svd" or small:
            found, space = exact(rows), None
        else:
            found, space = chain(rows, rows[label].sum(0), history.basis[0].to(rows.dtype))
        if commit:
            if self.ema_start == "first":
                history.note(batch.mass, filled)
            if space is not None:
                history.basis.copy_(space.basis)
                history.images.copy_(space.images)
        return found._replace(spectral_norm=found.spectral_norm * filled), gradient_gain * filled

    def _fading(self, label: Tensor, pull: Tensor, rate: Tensor | float) -> Tensor | None:
        """With class averaging, how much of its column an entry replaces."""
        if self.ema == "batch":
            return None
        return pull * (rate.index_select(0, label) if isinstance(rate, Tensor) else rate)

    def _apply(self, fn: Any, recurse: bool = True) -> CAR:
        return super()._apply(at_least_single(fn), recurse)  # type: ignore[no-any-return, no-untyped-call]

    def extra_repr(self) -> str:
        return (
            f"{self.num_classes} classes, ema={self.ema!r}, beta={self.beta}, gamma={self.kind.gamma}, "
            f"competitors={self.kind.competitors!r}, solver={self.solver!r}"
        )


class CARLoss(nn.Module):
    """Any classification loss plus ``alpha`` times CAR.

    Args:
        class_counts: training images per class.
        alpha: weight of the regulariser, 0 or more.
        base: a loss ``(logits, target) -> scalar`` that averages over samples; None is cross entropy, for hard, soft
            and mixed labels.
        start_step: training steps before the regulariser has any weight; its history fills meanwhile.
        warmup_steps: steps over which the weight then rises linearly to alpha.
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
        **options: Any,
    ) -> None:
        super().__init__()
        check_number(alpha=alpha, start_step=start_step, warmup_steps=warmup_steps)
        if not 0 <= alpha < float("inf"):
            raise ValueError(f"alpha must be 0 or more; got {alpha}.")
        if start_step < 0 or warmup_steps < 0:
            raise ValueError(f"start_step and warmup_steps must be 0 or more; got {start_step} and {warmup_steps}.")
        if base is not None and not callable(base):
            raise TypeError(f"base must be callable as base(logits, target); got {type(base).__name__}.")
        self.car = CAR(class_counts, **options)
        self.alpha, self.base = float(alpha), base
        self.start_step, self.warmup_steps = start_step, warmup_steps
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))
        self.shifts_base = False
        """Whether the cross entropy sees the logits that CAR sees."""
        self.parts: dict[str, Tensor] = {}

    @classmethod
    def reference(cls, class_counts: CountsLike, **options: Any) -> CARLoss:
        """The settings of the authors' released script, alpha 0.3."""
        return cls(class_counts, **{"alpha": 0.3, **REFERENCE, **options})

    @classmethod
    def classwise(cls, class_counts: CountsLike, **options: Any) -> CARLoss:
        """Class-wise averaging with a margin, alpha 10: its gradient carries the factor 1 - beta = 0.1."""
        return cls(class_counts, **{"alpha": 10.0, **CLASSWISE, **options})

    @classmethod
    def balanced(cls, class_counts: CountsLike, tau: float = BALANCED_TAU, **options: Any) -> CARLoss:
        """Balanced Softmax + CAR, both on logits with tau * log(n_j / N) added: the method ``car-balanced``.

        Inference takes the logits as they are.
        """
        if options.get("base") is not None:
            raise ValueError("CARLoss.balanced has a loss of its own, Balanced Softmax; leave base out.")
        if "prior_shift" in options:
            raise ValueError(f"prior_shift of CARLoss.balanced must be given as tau; got {options['prior_shift']}.")
        made = cls(class_counts, **{"alpha": BALANCED_ALPHA, **BALANCED, **options, "prior_shift": tau})
        made.shifts_base = True
        return made

    def forward(self, logits: Tensor, target: Target, *, sync: Sync | None = None) -> Tensor:
        """The loss. ``sync=False`` is for a call that not every rank makes."""
        penalty: Tensor = self.car(logits, target, sync=sync)
        base: Tensor = (
            cross_entropy(self.car._scores(logits) if self.shifts_base else logits, target, self.car.ignore_index)
            if self.base is None
            else self.base(logits, target)
        )
        if self.car.share != 1.0:
            base = base * self.car.share if self.car.share else logits.sum() * 0  # a mean over no sample is NaN
        alpha = self._alpha(penalty)
        if self.training and torch.is_grad_enabled():
            self.step.add_(1)
        self.parts = {"base": base.detach(), "car": penalty.detach(), "alpha": torch.as_tensor(alpha)}
        return base + alpha * penalty

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        seen = state_dict.get(f"{prefix}car.history.seen")
        if seen is None or seen.numel() == self.car.num_classes:  # otherwise the history says why and nothing is loaded
            super()._load_from_state_dict(state_dict, prefix, *args)

    def _alpha(self, like: Tensor) -> Tensor | float:
        if not self.start_step and not self.warmup_steps:
            return self.alpha
        if self.step.device != like.device:
            self.step = self.step.to(like.device)
        progress = (self.step - self.start_step + 1) / max(self.warmup_steps, 1)
        return self.alpha * progress.clamp(0, 1).to(like.dtype)


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


def _count(target: Target, ignore_index: int) -> Tensor:
    if isinstance(target, Tensor) and target.ndim == 2:
        return torch.tensor(target.shape[0], device=target.device)
    if isinstance(target, MixedTarget):
        return ((target.a != ignore_index) & (target.b != ignore_index)).sum()
    return (target != ignore_index).sum()


def _full_precision(device: torch.device) -> Any:
    enabled = torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, enabled=False) if enabled else contextlib.nullcontext()


def _choice(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}; got {value!r}.")
