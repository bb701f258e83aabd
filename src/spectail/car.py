"""CAR, the confusion-aware spectral regulariser."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from ._core.autograd import Weight, joined
from ._core.batch_confusion import BatchConfusion
from ._core.distributed import Sync, check_sync, find_group
from ._core.dtypes import full_precision
from ._core.history import LIVE_FROM, History, unrounded
from ._core.presets import PRESETS, Preset
from ._core.ranks import Ranks
from ._core.rates import Step
from ._core.small_step import SMALL, Setting, is_small, small_step
from ._core.spectral_step import FILTER_UP_TO, SVD_UP_TO, spectral_step
from ._core.surrogate import Surrogate
from ._core.waits import reading_waits
from ._core.workspace import Scratch
from ._core.worst_step import ClassErrors, WorstErrors, worst_step
from ._utils.checks import check_choice, check_number
from .counts import CountsLike, as_counts
from .functional import class_weights
from .spectral import Triplet
from .targets import (
    MIXED_MODES,
    Target,
    check_finite,
    check_target,
    check_target_values,
    entries,
    hard_counts,
    warn_of_probabilities,
)

__all__ = ["CAR", "PRESETS", "Preset"]

SHARPEST = 1e6  # far beyond it the softmax of norm="worst" would overflow; here it is the maximum already


class Reading(NamedTuple):
    """A batch that was found to be in order."""

    batch: BatchConfusion
    share: Tensor | float
    """This rank's share of the samples, times the number of ranks."""
    labelled: bool
    """Whether it certainly has a label that counts, known without looking."""


class CAR(nn.Module):
    r"""Confusion-aware spectral regulariser: the spectral norm of a running, class-weighted confusion matrix.

    .. math:: R_t = \lVert \hat C_t \Lambda \rVert_2, \qquad
              \hat C_t = \beta\,\hat C_{t-1} + (1-\beta)\,\tilde C_t, \qquad
              \lambda_j = (n_j / N + r_0)^{-1/2}

    where :math:`\tilde C_t` is :func:`spectail.functional.soft_confusion` of the batch. Gradients flow through
    :math:`\tilde C_t` only. Add ``alpha * car(logits, target)`` to the loss, or use :class:`CARLoss`.
    :class:`CARReference` is the same in thirty lines of plain torch.

    ``norm="worst"`` puts a soft maximum of the weighted class errors in place of the spectral norm:

    .. math:: R_t = \sum_j p_j e_j, \qquad e_j = \lambda_j \sum_i \hat c_{ij}, \qquad
              p = \operatorname{softmax}(s\, e / \max_k e_k) \text{ without gradient}

    Args:
        class_counts: training images per class: a list, a tensor or :class:`~spectail.ClassCounts`.
        beta: share of the history that is kept in a step, in [0, 1); 0 is the ablation without averaging.
        r0: smoothing of the class weights, above 0.
        gamma: margin inside the gate, in logit units.
        competitors: ``"all"`` (the paper's formula) or ``"non-target"`` (its text); see ``soft_confusion``.
        ema: ``"batch"`` averages the batch's whole matrix, in which absent classes are 0 (the paper).
            ``"class"`` averages each column over the batches that contain its class and leaves the others alone.
        ema_start: ``"zero"`` starts the history at 0; with ``"first"`` the first estimate of a column initialises it,
            without gradient.
        gate_grad: False stops the gradient through the gate.
        weighting: ``"frequency"``, or None for the ablation with all weights 1.
        normalize_weights: divide the weights by their mean.
        prior_shift: multiple of log(n_j / N) that is added to the logits first; 1 matches Balanced Softmax.
        surrogate: ``"full"`` or an ablation, see ``soft_confusion``.
        mixed: how a :class:`~spectail.MixedTarget` counts, see ``soft_confusion``.
        temperature: temperature of the softmax, by which the logits are divided.
        baseline_grad: False stops the gradient through the true logit in the selection, as the authors' script does.
            This changes only the ablations without softmax, because a softmax ignores a common shift.
        norm: ``"spectral"``, or ``"worst"``: a soft maximum of the class errors. It needs no singular vectors and keeps
            K numbers, :attr:`errors`, in place of the matrix.
        sharpness: s of ``norm="worst"``, from 0 (the mean of the class errors) to 1e6 (the largest of them).
        solver: algorithm for the spectral norm: ``"auto"``, ``"iterative"``, ``"svd"`` or ``"fixed"``. Auto takes the
            SVD up to 40 classes on a CPU and what suits the device otherwise. ``"fixed"`` takes, for either norm, the
            path of an accelerator on any device: a fixed number of steps, no decision that depends on a value, and
            value checks as ``validate`` says.
        sync: ``"auto"`` uses the global batch whenever torch.distributed runs; False works alone; a process group
            names the ranks that share a batch.
        on_empty: ``"ignore"`` accepts classes with 0 images.
        validate: label range and finite logits are checked on every call on a CPU. On an accelerator, where looking
            at values means waiting for them: ``"first"`` checks the first call, True every call, False none. The first
            call that is checked also warns if the logits look like the output of a softmax.
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
        >>> logits, labels = torch.randn(8, 3, requires_grad=True), torch.arange(8) % 3
        >>> loss = nn.functional.cross_entropy(logits, labels) + 0.5 * car(logits, labels)
        >>> loss.backward()
        >>> car.confusion.shape, car.last.value > 0
        (torch.Size([3, 3]), tensor(True))

    Reference: Confusion-Aware Spectral Regularizer, CVPR 2026.
    """

    weights: Tensor
    log_prior: Tensor
    history: History | ClassErrors

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
        temperature: float = 1.0,
        baseline_grad: bool = True,
        norm: str = "spectral",
        sharpness: float = 20.0,
        solver: str = "auto",
        sync: Sync = "auto",
        on_empty: str = "error",
        validate: bool | str = "first",
        ignore_index: int = -100,
    ) -> None:
        super().__init__()
        counts = as_counts(class_counts, on_empty)
        check_number(beta=beta, r0=r0, gamma=gamma, prior_shift=prior_shift, temperature=temperature)
        check_number(sharpness=sharpness)
        if not 0 <= beta < 1:
            raise ValueError(f"beta must lie in [0, 1): 0 keeps no history, 1 would never learn; got {beta}.")
        if not -float("inf") < prior_shift < float("inf"):
            raise ValueError(f"prior_shift must be a finite number; got {prior_shift}.")
        if not 0 <= sharpness <= SHARPEST:
            raise ValueError(
                f"sharpness must lie between 0, the mean of the class errors, and {SHARPEST:g}, the largest one; "
                f"got {sharpness}."
            )
        check_choice("norm", norm, ("spectral", "worst"))
        check_choice("ema", ema, ("batch", "class"))
        check_choice("ema_start", ema_start, ("zero", "first"))
        check_choice("weighting", weighting, ("frequency", None))
        check_choice("mixed", mixed, MIXED_MODES)
        check_choice("solver", solver, ("auto", "iterative", "svd", "fixed"))
        check_choice("validate", validate, ("first", True, False))
        self.kind = Surrogate(float(gamma), competitors, gate_grad, surrogate, float(temperature), baseline_grad)
        self.num_classes = counts.num_classes
        self.beta, self.ema, self.ema_start = float(beta), ema, ema_start
        self.prior_shift, self.mixed, self.solver = float(prior_shift), mixed, solver
        self.norm, self.sharpness = norm, float(sharpness)
        self.sync, self.validate, self.ignore_index = check_sync(sync), validate, ignore_index
        self.counts, self.r0 = counts, float(r0)
        self.weighting, self.normalize_weights = weighting, bool(normalize_weights)
        weights, log_prior = self._constants(torch.float32)
        self.register_buffer("weights", weights, persistent=False)
        self.register_buffer("log_prior", log_prior, persistent=False)
        if norm == "worst":
            self.history = ClassErrors(self.num_classes)
        else:
            self.history = History(weights, live=ema == "batch" and self.num_classes > LIVE_FROM)
        self.last: Triplet | WorstErrors | None = None
        self._checked = self._looked = False
        self._ranks = Ranks(self.num_classes, ignore_index, whole_columns=norm == "spectral")
        self._scratch = Scratch()

    @classmethod
    def reference(cls, class_counts: CountsLike, **options: Any) -> CAR:
        """The settings of the authors' released script; ``options`` override them."""
        return cls(class_counts, **PRESETS["reference"].options | options)

    @classmethod
    def classwise(cls, class_counts: CountsLike, **options: Any) -> CAR:
        """Class-wise averaging with a margin: the estimator that works when classes outnumber the batch."""
        return cls(class_counts, **PRESETS["classwise"].options | options)

    def _constants(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Lambda and the log prior, in the precision of the logits."""
        weights = class_weights(self.counts, self.r0, self.normalize_weights, "ignore", dtype)
        prior = (self.counts.counts.clamp_min(1).double() / self.counts.total).log()  # an empty class as one image
        return weights if self.weighting else torch.ones_like(weights), prior.to(dtype)

    @property
    def confusion(self) -> Tensor:
        """The running confusion matrix, (K, K), rows predicted and columns true; detached, built on request."""
        if isinstance(self.history, ClassErrors):
            raise RuntimeError(
                "norm='worst' keeps the error of each class, car.errors, and no confusion matrix; "
                "norm='spectral' has one."
            )
        return (self.history.dense() / self.weights[:, None].to(self.history.rows.dtype)).T

    @property
    def figure(self) -> str:
        """What its value is called in logs."""
        return "spectral_norm" if self.norm == "spectral" else "worst_error"

    @property
    def errors(self) -> Tensor:
        """The running soft error of each class, (K,): the column sums of the running confusion; detached, a copy."""
        return self.history.errors.clone() if isinstance(self.history, ClassErrors) else self.confusion.sum(0)

    def reset(self) -> None:
        """Forget the history."""
        self.history.reset(self.history.dtype, self.history.seen.device)
        self.last = None

    def forward(self, logits: Tensor, target: Target, *, sync: Sync | None = None) -> Tensor:
        """The regulariser. ``sync=False`` is for a call that not every rank makes."""
        return self.measure(logits, target, sync=sync)[0]

    def measure(self, logits: Tensor, target: Target, *, sync: Sync | None = None) -> tuple[Tensor, Tensor | float]:
        """The regulariser, and this rank's share of the samples times the number of ranks, which is 1 for one rank."""
        return self._measure(logits, target, sync)[:2]

    def _measure(
        self, logits: Tensor, target: Target, sync: Sync | None, alpha: Weight | None = None
    ) -> tuple[Tensor, Tensor | float, Tensor | None]:
        """The same; with ``alpha``, and where it can, the loss in its place and the cross entropy in it, detached."""
        group = find_group(self.sync if sync is None else sync)
        commit = self.training and torch.is_grad_enabled()
        fixed = self.solver == "fixed" or reading_waits(logits)
        alone = group is None and not fixed
        with full_precision(logits.device if isinstance(logits, Tensor) else self.weights.device):
            counts = hard_counts(target, self.num_classes, self.ignore_index) if alone else None
            if counts is not None and self._few and is_small(logits, target, self.kind):
                scores = self.shifted(logits)
                check_finite(scores.detach())
                self._look(logits)
                averaging = self.beta, self.ema == "class", self.ema_start == "first"
                setting = Setting(self.kind, self.history, self.weights.numpy(), *averaging, self.sharpness, commit)
                found, value, base = small_step(scores, target, counts, setting, alpha)
                self.__dict__["last"] = found  # a module looks long and hard at what it is given
                return value, 1.0, base
            scores, reading = self._read(logits, target, group, fixed, counts)
            with torch.no_grad():
                found, learned = self._step(reading, group, commit, fixed)
            value, base = joined(scores, reading.batch, found, learned, alpha if alone else None)
        return value, reading.share, base

    @property
    def _few(self) -> bool:
        """Whether a CPU takes short steps: those of class errors, or Chebyshev's, which are for few classes."""
        if self.norm == "worst":
            return self.solver != "fixed"
        least = 0 if self.solver == "iterative" else SVD_UP_TO
        few = least < self.num_classes <= FILTER_UP_TO and self.solver in ("auto", "iterative")
        return few and self.ema_start == "zero"

    def shifted(self, logits: Tensor) -> Tensor:
        """The logits that CAR sees: in float32 at least, shifted by the prior, on the device of the state."""
        if not isinstance(logits, Tensor) or logits.ndim != 2 or not logits.is_floating_point():
            found = f"{tuple(logits.shape)} {logits.dtype}" if isinstance(logits, Tensor) else type(logits).__name__
            raise TypeError(
                f"logits must be a floating-point tensor of shape (N, {self.num_classes}); got {found}. The logits "
                "come first, then the labels."
            )
        if logits.shape[1] != self.num_classes:
            raise ValueError(
                f"logits have {logits.shape[1]} classes and class_counts {self.num_classes}: "
                "they must describe the same classes."
            )
        if logits.device != self.weights.device:
            with torch.inference_mode(False):  # a history moved in inference mode could not be written to outside it
                self.to(logits.device)
        wide = torch.float64 in (logits.dtype, self.history.dtype)
        scores = logits.to(torch.float64 if wide else torch.float32)
        if scores.dtype != self.log_prior.dtype:
            self.weights, self.log_prior = (value.to(scores.device) for value in self._constants(scores.dtype))
        return torch.add(scores, self.log_prior, alpha=self.prior_shift) if self.prior_shift else scores

    def _read(
        self, logits: Tensor, target: Target, group: dist.ProcessGroup | None, fixed: bool, counts: NDArray[Any] | None
    ) -> tuple[Tensor, Reading]:
        """Check the batch and count its label mass; nothing has changed yet when this raises."""
        problem: Exception | None = None
        labelled = False
        wait = not fixed or self.validate is True or (group is not None and not self._ranks.agreed(group))
        try:
            scores = self.shifted(logits)
            detached = scores.detach()
            labelled = self._check(logits, detached, target, group is None, fixed, counts is not None)
            items = entries(target, self.num_classes, scores.dtype, self.mixed, self.ignore_index, labelled, fixed)
            if counts is None:
                mass = detached.new_zeros(self.num_classes).index_add_(0, items.label, items.mass)
            else:
                mass = torch.from_numpy(counts).to(scores.dtype)
            labelled = labelled and self.mixed != "clean"
        except (TypeError, ValueError) as error:
            problem = error
        share: Tensor | float = 1.0
        if group is not None:
            labelled = False  # of all ranks together, that is not known
            mine = mass if problem is None else self.weights.new_zeros(self.num_classes)
            mass, share = self._ranks.exchange(mine, target, problem, group, fixed, wait)
        if problem is not None:
            raise problem
        if not self._checked:
            self._checked = True
        scratch = None if fixed or scores.numel() <= SMALL else self._scratch
        batch = BatchConfusion(detached, items, mass, self.kind, scratch)
        return scores, Reading(batch, share, labelled)

    def _check(self, logits: Tensor, scores: Tensor, target: Target, alone: bool, fixed: bool, known: bool) -> bool:
        """Raises for a batch that cannot be used; True says that no label is an ignored one."""
        check_target(target, scores.shape[0], self.num_classes)
        if scores.shape[0] == 0:
            if alone:
                raise ValueError("the batch is empty: CAR needs at least one sample.")
            return False
        if torch.compiler.is_compiling():
            return False
        if fixed and (self.validate is False or (self.validate == "first" and self._checked)):
            return False
        none_ignored = known or check_target_values(target, self.num_classes, self.ignore_index)
        check_finite(scores)
        self._look(logits)
        return none_ignored

    def _look(self, logits: Tensor) -> None:
        """Warn of probabilities in place of logits, on the first call only."""
        if not self._looked:
            self._looked = True
            warn_of_probabilities(logits)

    def _step(
        self, reading: Reading, group: dist.ProcessGroup | None, commit: bool, fixed: bool
    ) -> tuple[Triplet | WorstErrors, Tensor]:
        """Move the history by a batch: the norm that it has then, and by entry how much of it carries gradient."""
        batch, history = reading.batch, self.history
        found: Triplet | WorstErrors
        if not fixed and not reading.labelled and not bool(batch.mass.any()):
            nothing = batch.mass.new_zeros(self.num_classes)  # is the same by either norm
            return WorstErrors(nothing[0], nothing, nothing), torch.zeros_like(batch.items.mass)
        seeds = self.ema_start == "first"
        step = Step(batch, self.beta, self.ema == "class", seeds, self._ranks, group, commit, fixed)
        weights = self.weights.to(batch.mass.dtype)
        if isinstance(history, ClassErrors):
            found, learned = worst_step(history, step, weights, self.sharpness)
        else:
            found, learned = spectral_step(history, step, weights, self.solver)
        self.__dict__["last"] = found
        return found, learned

    def _apply(self, fn: Any, recurse: bool = True) -> CAR:
        return super()._apply(unrounded(fn), recurse)  # type: ignore[no-any-return, no-untyped-call]

    def extra_repr(self) -> str:
        return (
            f"{self.num_classes} classes, ema={self.ema!r}, beta={self.beta}, gamma={self.kind.gamma}, "
            f"competitors={self.kind.competitors!r}, norm={self.norm!r}, solver={self.solver!r}"
        )
