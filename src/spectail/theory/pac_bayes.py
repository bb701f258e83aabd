"""The bound on class errors behind CAR (its Prop. 3.2), with every constant written out."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from .._utils.checks import check_number
from ..counts import ClassCounts, CountsLike, as_counts
from ..functional import class_weights, margin_confusion
from .network import Network, read_network
from .terms import Bound, cover_size, deviation

ROWS = 1 << 16  # samples that go through the network at a time
SIGMA = 114  # the proof's 4 e^3 sqrt(2), rounded up


def bound(
    model: nn.Module,
    features: Tensor,
    labels: Tensor,
    class_counts: CountsLike,
    *,
    gamma: float,
    delta: float = 0.05,
    r0: float = 0.2,
    input_norm: float | None = None,
) -> Bound:
    r"""The bound on the error of every class, term by term: with probability 1 - delta over the training set,

    .. math:: e_j \le \frac{\nu}{\lambda_j} \lVert C_{S,\gamma}\Lambda \rVert_2
              + \nu \frac{\lambda_{max}}{\lambda_j} \cdot
              4 \sqrt{\frac{K}{m_{min} - 8K}\Big[KL + \ln\frac{3\, m_{min}\, n\, m^{1/2n}}{4\delta}\Big]},
              \qquad \nu = \sqrt K,

    .. math:: KL = \frac{114^2}{2} \frac{B^2 n^2 h \ln(4nh)}{\gamma^2}
              \prod_l \lVert W_l \rVert_2^2 \sum_l \frac{\lVert W_l \rVert_F^2}{\lVert W_l \rVert_2^2}.

    All of it in float64. It exists only if the smallest class has more than 8 K images; ``print`` the result to read
    whether it does and whether it says anything.

    Args:
        model: a feed-forward ReLU network: nn.Linear layers with nn.ReLU between them, after an optional nn.Flatten,
            in an nn.Sequential; or one nn.Linear. Biases are folded into the matrices, see
            :class:`~spectail.theory.Network`.
        features: the whole training set, one sample per row, as the model takes it.
        labels: its class indices.
        class_counts: images per class; they must be those of ``labels``.
        gamma: margin in logit units, above 0, chosen before looking at the data.
        delta: probability with which the bound may fail, in (0, 1).
        r0: smoothing of the class weights, as in :class:`~spectail.CAR`.
        input_norm: largest l2 norm B that an input can have. None takes the largest of ``features``, which is right
            only if no other input is longer.

    Shape:
        features (N, ...); labels (N,).

    Example:
        >>> _ = torch.manual_seed(0)
        >>> x, y = torch.randn(90, 4), torch.arange(90) % 3
        >>> model = nn.Sequential(nn.Linear(4, 8, bias=False), nn.ReLU(), nn.Linear(8, 3, bias=False))
        >>> result = bound(model, x, y, [30, 30, 30], gamma=0.5)
        >>> result.defined, result.informative, f"{result.nu:.4f}"
        (True, False, '1.7321')

    Reference: CAR, CVPR 2026, Prop. 3.2 and its appendix. ``docs/theory.md`` says where this differs, and why.
    """
    check_number(gamma=gamma, delta=delta)
    if not 0 < gamma < math.inf:
        raise ValueError(f"gamma is a margin in logit units and must be above 0; got {gamma}.")
    if not 0 < delta < 1:
        raise ValueError(f"delta is a probability and must lie between 0 and 1; got {delta}.")
    network = read_network(model)
    counts = as_counts(class_counts, on_empty="ignore")
    network.check(features)
    _check_labels(network, features, labels, counts)
    weights = class_weights(counts, r0, on_empty="ignore", dtype=torch.float64)
    confusion, longest = _margin_confusion(network, features, labels, gamma, len(counts))
    longest = _input_norm(input_norm, longest, network.folded)

    classes, layers, width = len(counts), len(network.matrices), network.width
    smallest = int(counts.counts.min())
    spectral = torch.stack([torch.linalg.matrix_norm(matrix, 2) for matrix in network.matrices])
    frobenius = torch.stack([matrix.norm() for matrix in network.matrices])
    product, ratios = float(spectral.prod()), float((frobenius / spectral).square().sum())
    psi = longest**2 * layers**2 * width * math.log(layers * width) * product**2 * ratios
    mean = product ** (1 / layers)  # the network with all spectral norms made equal to this is the same function
    sigma = gamma / (SIGMA * layers * longest * math.sqrt(width * math.log(4 * layers * width)) * mean ** (layers - 1))
    kl = mean**2 * ratios / (2 * sigma**2)
    cover = cover_size(layers, counts.total)
    log_term = math.log(0.75 * max(smallest, 1) * cover / delta)

    nu = math.sqrt(classes)
    norm = float(torch.linalg.matrix_norm(confusion * weights, 2))
    margin_errors, empirical = confusion.sum(0), nu * norm / weights
    gap = deviation(classes, smallest, kl, log_term)
    printed = complexity = per_class = total = direct = None
    if gap is not None:
        room = (smallest - 8 * classes) * gamma**2
        printed = math.sqrt(classes / room * (psi + math.log(layers * smallest / delta)))
        complexity = nu * gap * weights.max() / weights
        per_class = empirical + complexity
        total = nu * norm + nu * gap * float(weights.max())
        direct = margin_errors + nu * gap
    return Bound(
        counts=counts, gamma=gamma, delta=delta, smallest=smallest, weights=weights, spectral_norm=norm, nu=nu,
        empirical=empirical, margin_errors=margin_errors, layers=layers, width=width, input_norm=longest,
        folded=network.folded, spectral_product=product, norm_ratios=ratios, psi=psi, sigma=sigma, kl=kl, cover=cover,
        log_term=log_term, printed=printed, deviation=gap, complexity=complexity, per_class=per_class, total=total,
        direct=direct,
    )  # fmt: skip


def _margin_confusion(
    network: Network, features: Tensor, labels: Tensor, gamma: float, classes: int
) -> tuple[Tensor, float]:
    """Margin confusion of all samples, and the largest input norm."""
    errors = torch.zeros(classes, classes, dtype=torch.float64)
    longest = 0.0
    labels = labels.detach().cpu().long()
    for rows, label in zip(torch.split(features, ROWS), torch.split(labels, ROWS), strict=True):
        inputs = network.inputs(rows)
        if not bool(inputs.isfinite().all()):
            raise ValueError("features must be finite numbers; found NaN or infinity. Clean the data first.")
        longest = max(longest, float(inputs.norm(dim=1).max()))
        here = torch.bincount(label, minlength=classes)
        errors += (margin_confusion(network.logits(inputs), label, gamma) * here).round()  # shares back to counts
    return errors / torch.bincount(labels, minlength=classes).clamp(min=1), longest


def _input_norm(given: float | None, measured: float, folded: bool) -> float:
    if given is None:
        if measured == 0:
            raise ValueError("all features are zero: the bound needs inputs of positive length.")
        return measured
    check_number(input_norm=given)
    longest = math.hypot(given, 1) if folded else float(given)  # the constant coordinate counts too
    if not measured * (1 - 1e-9) <= longest < math.inf:
        seen = math.sqrt(max(measured**2 - folded, 0))
        raise ValueError(f"input_norm must be at least the largest norm in features, {seen:.6g}; got {given}.")
    return longest


def _check_labels(network: Network, features: Tensor, labels: Tensor, counts: ClassCounts) -> None:
    outputs = network.matrices[-1].shape[0]
    if outputs != len(counts):
        raise ValueError(f"the model has {outputs} outputs and class_counts {len(counts)} classes: they must agree.")
    own = ClassCounts.from_targets(labels, len(counts))
    if own.total != len(features):
        raise ValueError(f"features and labels must have one entry per sample; got {len(features)} and {own.total}.")
    if own.tolist() != counts.tolist():
        label = next(k for k, (a, b) in enumerate(zip(own.tolist(), counts.tolist(), strict=True)) if a != b)
        raise ValueError(
            f"class_counts must be those of the labels: {counts.describe(label)} has {counts.tolist()[label]:,} there "
            f"and {own.tolist()[label]:,} among the labels. Pass the whole training set."
        )
