"""The paper's mathematics as pure functions: confusion matrices, class weights, class errors.

Everywhere rows are predicted classes, columns are true classes, and the diagonal is 0, so the sum of a
column is the error of its class.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ._core.surrogate import Surrogate, soft_rows
from ._utils.checks import check_choice, check_number
from ._utils.names import shown
from .counts import CountsLike, as_counts
from .targets import MIXED_MODES, Entries, Target, check_finite, check_target, check_target_values, entries

MOST_CLASSES = 100_000  # a matrix of so many classes takes 40 GB


def soft_confusion(
    logits: Tensor,
    target: Target,
    gamma: float = 0.0,
    competitors: str = "all",
    gate_grad: bool = True,
    surrogate: str = "full",
    mixed: str = "masked",
    ignore_index: int = -100,
    temperature: float = 1.0,
    baseline_grad: bool = True,
) -> Tensor:
    r"""Differentiable confusion matrix of a batch.

    .. math:: \tilde c_{ij} = \frac{1}{m_j} \sum_{q : y_q = j} \sigma(\gamma + f_i - f_j)\, \mathrm{softmax}(f)_i,
              \qquad \tilde c_{jj} = 0

    where f are the logits of sample q and m_j is the number of samples of the batch with label j. With soft labels m_j
    is label mass, and a column is divided by max(m_j, 1), so that a class that is barely present counts less.

    Args:
        logits: the scores used at inference.
        target: class indices, soft labels, or a :class:`~spectail.MixedTarget`.
        gamma: margin inside the gate, in logit units.
        competitors: ``"all"`` normalises the softmax over all classes (the paper's formula), ``"non-target"`` over
            the classes other than the true one (the paper's text).
        gate_grad: False stops the gradient through the gate.
        surrogate: ``"full"``, or the ablations ``"no-gate"`` (gate = 1), ``"no-softmax"`` (ReLU(f_i - f_j) normalised
            over i != j in place of the softmax), ``"no-both"`` (the same, with ReLU(gamma + f_i - f_j) as the gate,
            without gradient).
        mixed: how a :class:`~spectail.MixedTarget` counts: ``"masked"``, ``"soft"``, ``"dominant"``, ``"clean"``.
        ignore_index: samples with this label are left out.
        temperature: the logits are divided by it in the softmax.
        baseline_grad: False stops the gradient through the f_j of the selection. This changes only the ablations
            without softmax, because a softmax ignores a common shift.

    Shape:
        logits (N, K); target (N,), (N, K) or MixedTarget of N; result (K, K).

    Example:
        >>> logits = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 3.0]])
        >>> soft_confusion(logits, torch.tensor([0, 2]))
        tensor([[0.0000, 0.0000, 0.0020],
                [0.0658, 0.0000, 0.0136],
                [0.0107, 0.0000, 0.0000]])

    Reference: CAR, CVPR 2026, the soft margin confusion.
    """
    check_number(gamma=gamma, temperature=temperature)
    kind = Surrogate(gamma, competitors, gate_grad, surrogate, temperature, baseline_grad)
    scores = _scores(logits)
    items = _entries(target, scores, mixed, ignore_index)
    rows = soft_rows(items.of(scores), items.label, items.partner, kind)
    mass = items.by_class(scores.shape[1])
    weight = items.mass / mass.clamp_min(1)[items.label]
    columns = scores.new_zeros(scores.shape[1], scores.shape[1])
    return columns.index_add(0, items.label, rows * weight[:, None]).T


def confusion(
    pred: Tensor, target: Target, num_classes: int, mixed: str = "masked", ignore_index: int = -100
) -> Tensor:
    """Confusion matrix of hard predictions: entry (i, j) is the share of class j predicted as i, 0 on the diagonal.

    A class without samples has a zero column.

    Shape:
        pred (N,) class indices; target (N,), (N, K) or MixedTarget of N; result (K, K).

    Example:
        >>> confusion(torch.tensor([0, 1, 1, 1]), torch.tensor([0, 0, 1, 2]), num_classes=3)
        tensor([[0.0000, 0.0000, 0.0000],
                [0.5000, 0.0000, 1.0000],
                [0.0000, 0.0000, 0.0000]])
    """
    if not isinstance(pred, Tensor) or pred.ndim != 1 or pred.is_floating_point() or pred.dtype == torch.bool:
        raise TypeError("pred must be a flat tensor of predicted class indices; pass logits.argmax(1) for logits.")
    if not isinstance(num_classes, int) or isinstance(num_classes, bool) or not 1 <= num_classes <= MOST_CLASSES:
        raise ValueError(f"num_classes must lie between 1 and {MOST_CLASSES:,}; got {shown(num_classes)}.")
    check_target(target, pred.numel(), num_classes)
    check_target_values(target, num_classes, ignore_index)
    outside = pred[(pred < 0) | (pred >= num_classes)]
    if outside.numel():
        raise ValueError(f"pred must hold class indices in [0, {num_classes}); found {int(outside[0])}.")
    check_choice("mixed", mixed, MIXED_MODES)
    items = entries(target, num_classes, torch.get_default_dtype(), mixed, ignore_index)
    return _hard_confusion(items.of(pred.long()), items, num_classes)


def margin_confusion(
    logits: Tensor, target: Target, gamma: float, mixed: str = "masked", ignore_index: int = -100
) -> Tensor:
    r"""Margin confusion matrix: an error counts unless the true class leads its strongest rival by ``gamma``.

    .. math:: c^\gamma_{ij} = \frac{1}{m_j} \sum_{q : y_q = j} 1[f_j < \gamma + f_i]\; 1[i = \arg\max_{i' \ne j} f_{i'}]

    The inequality is strict, as the paper writes it.

    Example:
        >>> margin_confusion(torch.tensor([[2.0, 1.5, 0.0]]), torch.tensor([0]), gamma=1.0)
        tensor([[0., 0., 0.],
                [1., 0., 0.],
                [0., 0., 0.]])
    """
    check_number(gamma=gamma)
    if not gamma >= 0:
        raise ValueError(f"gamma is a margin in logit units and must be 0 or more; got {gamma}.")
    scores = _scores(logits)
    items = _entries(target, scores, mixed, ignore_index)
    true = items.label[:, None]
    rows = items.of(scores)
    best, rival = rows.scatter(1, true, -torch.inf).max(1)
    wrong = rows.gather(1, true)[:, 0] < gamma + best
    return _hard_confusion(rival.where(wrong, items.label), items, scores.shape[1])


def class_weights(
    class_counts: CountsLike,
    r0: float = 0.2,
    normalize: bool = False,
    on_empty: str = "error",
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""Weight of each class, :math:`\lambda_j = (n_j / N + r_0)^{-1/2}`: rarer classes weigh more.

    Args:
        class_counts: training images per class.
        r0: smoothing, above 0; the smaller it is, the more the weights differ.
        normalize: divide by the mean weight.
        on_empty: ``"ignore"`` accepts classes without images.
        dtype: of the result; torch's default dtype if None.

    Example:
        >>> class_weights([80, 15, 5])
        tensor([1.0000, 1.6903, 2.0000])
    """
    check_number(r0=r0)
    if not 0 < r0 < float("inf"):
        raise ValueError(f"r0 must be above 0; got {r0}.")
    weights = (as_counts(class_counts, on_empty).frequencies + float(r0)).rsqrt()
    return (weights / weights.mean() if normalize else weights).to(dtype or torch.get_default_dtype())


def class_errors(confusion: Tensor) -> Tensor:
    """Error of each class: the column sums of a confusion matrix with zero diagonal.

    Example:
        >>> class_errors(torch.tensor([[0.0, 0.25], [0.5, 0.0]]))
        tensor([0.5000, 0.2500])
    """
    if not isinstance(confusion, Tensor):
        raise TypeError(f"confusion must be a tensor of shape (K, K); got {type(confusion).__name__}.")
    if confusion.ndim != 2 or confusion.shape[0] != confusion.shape[1]:
        raise ValueError(f"confusion must be a square matrix (K, K); got shape {tuple(confusion.shape)}.")
    return confusion.sum(0)


def worst_class_error(confusion: Tensor, weights: Tensor | None = None) -> Tensor:
    r"""Weighted worst-class error, :math:`\max_j \lambda_j \sum_i c_{ij}`; weights None means all 1.

    Example:
        >>> worst_class_error(torch.tensor([[0.0, 0.25], [0.5, 0.0]]), torch.tensor([1.0, 3.0]))
        tensor(0.7500)
    """
    errors = class_errors(confusion)
    if weights is None:
        return errors.max()
    if weights.shape != errors.shape:
        raise ValueError(f"weights must have shape {tuple(errors.shape)}, one per class; got {tuple(weights.shape)}.")
    return (errors * weights.to(errors)).max()


def _hard_confusion(pred: Tensor, items: Entries, num_classes: int) -> Tensor:
    wrong = pred != items.label
    if items.partner is not None:
        wrong &= pred != items.partner
    counts = items.mass.new_zeros(num_classes, num_classes)
    counts.index_put_((pred, items.label), items.mass * wrong, accumulate=True)
    mass = items.by_class(num_classes)
    return counts / mass.where(mass > 0, 1)


def _scores(logits: Tensor) -> Tensor:
    if not isinstance(logits, Tensor) or logits.ndim != 2 or not logits.is_floating_point():
        found = f"{tuple(logits.shape)} {logits.dtype}" if isinstance(logits, Tensor) else type(logits).__name__
        raise TypeError(f"logits must be a floating-point tensor of shape (N, K); got {found}.")
    return logits if logits.dtype == torch.float64 else logits.float()


def _entries(target: Target, scores: Tensor, mixed: str, ignore_index: int) -> Entries:
    check_target(target, scores.shape[0], scores.shape[1])
    if not torch.compiler.is_compiling() and scores.device.type == "cpu":
        check_target_values(target, scores.shape[1], ignore_index)
        check_finite(scores.detach())
    check_choice("mixed", mixed, MIXED_MODES)
    return entries(target, scores.shape[1], scores.dtype, mixed, ignore_index)
