"""The public Python API with arguments of every kind: an answer, or a ValueError or TypeError in words."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

import spectail
from spectail import CAR, CARLoss, ClassCounts, MixedTarget, losses, spectral
from spectail import functional as SF
from spectail.data import LongTailSampler
from spectail.diagnosis import analyse, make_predictions
from spectail.metrics import Metrics

from .cases import Hang, Row, patience

ODD = st.sampled_from([None, True, False, 0, 1, -1, 2, 10**12, 10**30, 0.5, -0.5, float("nan"), float("inf"), "", "x", "cat", b"x", [], {}, set(), (), object,
                       [1, 2], [0, 0], [1, -1], [3, 2, 1], [0.5, 1], ["a", "b"], {"a": 1}, range(3), 1j, np.array([1, 2, 3]), np.float32(1), torch.tensor(3)])  # fmt: skip
COUNTS = st.one_of(st.lists(st.integers(1, 50), min_size=2, max_size=6), st.lists(st.integers(-2, 5), max_size=4), ODD)
OPTIONS = st.dictionaries(st.sampled_from(["beta", "r0", "gamma", "competitors", "ema", "ema_start", "gate_grad", "weighting", "prior_shift", "surrogate",
                                           "mixed", "solver", "sync", "on_empty", "validate", "ignore_index", "temperature", "normalize_weights"]), ODD, max_size=2)  # fmt: skip
SCHEDULE = st.dictionaries(
    st.sampled_from(["alpha", "base", "start_step", "warmup_steps", "shift_base"]), ODD, max_size=2
)


@st.composite
def logits(draw: Any) -> Any:
    shape = draw(st.sampled_from([(4, 3), (1, 3), (4, 2), (0, 3), (4,), (2, 4, 3), (4, 7), ()]))
    made = torch.randn(shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 9))))
    way = draw(
        st.sampled_from(
            ["", "", "", "nan", "inf", "huge", "half", "double", "int", "complex", "list", "array", "none", "bool"]
        )
    )
    if way in ("nan", "inf", "huge") and made.numel():
        made.view(-1)[0] = {"nan": float("nan"), "inf": float("inf"), "huge": 3e38}[way]
    kinds = {
        "half": torch.float16,
        "double": torch.float64,
        "int": torch.int64,
        "complex": torch.complex64,
        "bool": torch.bool,
    }
    if way in kinds:
        return made.to(kinds[way])
    return {"list": made.tolist(), "array": made.numpy(), "none": None}.get(way, made)


@st.composite
def targets(draw: Any) -> Any:
    size = draw(st.sampled_from([4, 4, 4, 1, 0, 3]))
    labels = torch.randint(0, 3, (size,), generator=torch.Generator().manual_seed(draw(st.integers(0, 9))))
    way = draw(
        st.sampled_from(
            [
                "",
                "",
                "",
                "soft",
                "mixed",
                "large",
                "negative",
                "ignored",
                "float",
                "bool",
                "list",
                "array",
                "none",
                "int32",
                "uint8",
                "soft nan",
            ]
        )
    )
    if way in ("large", "negative", "ignored") and size:
        labels[0] = {"large": 99, "negative": -1, "ignored": -100}[way]
    if way.startswith("soft"):
        soft = torch.nn.functional.one_hot(labels, 3).float()
        return soft * float("nan") if way == "soft nan" else soft
    if way == "mixed":
        return MixedTarget(labels, labels.flip(0), draw(st.sampled_from([0.0, 0.5, 1.0])))
    kinds = {"float": torch.float32, "bool": torch.bool, "int32": torch.int32, "uint8": torch.uint8}
    return {"list": labels.tolist(), "array": labels.numpy(), "none": None}.get(
        way, labels.to(kinds.get(way, torch.int64))
    )


LOSSES = [losses.FocalLoss, losses.LabelOverSmoothLoss]
COUNTED = [losses.ClassBalancedLoss, losses.LDAMLoss, losses.BalancedSoftmaxLoss, losses.GeometricMeanLoss]
CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "CAR": (lambda counts, options, a, b: CAR(counts, **options)(a, b), (COUNTS, OPTIONS, logits(), targets())),
    "CAR, right counts": (lambda options, a, b: CAR([5, 3, 2], **options)(a, b), (OPTIONS, logits(), targets())),
    "CARLoss": (lambda options, a, b: CARLoss([5, 3, 2], **options)(a, b), (SCHEDULE, logits(), targets())),
    "CAR.classwise": (lambda counts, a, b: CAR.classwise(counts)(a, b), (COUNTS, logits(), targets())),
    "ClassCounts": (lambda counts, rule: ClassCounts(counts).groups(rule), (COUNTS, st.one_of(st.sampled_from(["count", "oltr"]), ODD))),
    "from_targets": (lambda values, size: ClassCounts.from_targets(values, num_classes=size), (st.one_of(COUNTS, targets()), st.one_of(st.none(), ODD))),
    "MixedTarget": (lambda a, b, lam: CAR([5, 3, 2])(torch.zeros(4, 3), MixedTarget(a, b, lam)), (targets(), targets(), ODD)),
    "soft_confusion": (lambda a, b, gamma: SF.soft_confusion(a, b, gamma=gamma), (logits(), targets(), ODD)),
    "confusion": (SF.confusion, (targets(), targets(), ODD)),
    "margin_confusion": (SF.margin_confusion, (logits(), targets(), ODD)),
    "class_weights": (lambda counts, r0: SF.class_weights(counts, r0=r0), (COUNTS, ODD)),
    "top_singular": (spectral.top_singular, (st.one_of(logits(), ODD),)),
    "plain losses": (lambda kind, a, b: kind()(a, b), (st.sampled_from(LOSSES), logits(), targets())),
    "losses of counts": (lambda kind, counts, a, b: kind(counts)(a, b), (st.sampled_from(COUNTED), COUNTS, logits(), targets())),
    "Metrics": (lambda counts, a, b: (metrics := Metrics(counts), metrics.update(a, b), metrics.compute()), (COUNTS, logits(), targets())),
    "make_predictions": (lambda a, b, names, counts: analyse(make_predictions(a, b, class_names=names, class_counts=counts)),
                         (st.one_of(targets(), ODD), st.one_of(logits(), targets(), ODD), ODD, COUNTS)),
    "LongTailSampler": (lambda labels, kind: list(LongTailSampler(labels, kind)), (st.one_of(targets(), COUNTS), st.one_of(st.just("class-balanced"), ODD))),
}  # fmt: skip


def attack(row: Row, work: Path, seed: int, amount: int) -> None:
    assert spectail.__version__
    each = settings(
        max_examples=-(-amount // len(CALLS)), deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    for name, (call, arguments) in CALLS.items():
        seeded(seed)(each(given(st.tuples(*arguments))(one_call(row, name, call))))()


def one_call(row: Row, name: str, call: Callable[..., Any]) -> Callable[[tuple[Any, ...]], None]:
    seen: set[str] = set()

    def one(values: tuple[Any, ...]) -> None:
        fault = tried(call, values)
        if fault is None or fault[:60] not in seen:
            row.add(f"{name}{values!r}"[:300], fault)
            seen.add((fault or "")[:60])
        else:  # counted, not shown again
            row.cases += 1
            row.failures.append(f"{name}: {fault[:60]}, again")

    return one


def tried(call: Callable[..., Any], values: tuple[Any, ...]) -> str | None:
    """What is wrong with the answer, if anything."""
    try:
        with warnings.catch_warnings(), patience(20):
            warnings.simplefilter("ignore")
            answer = call(*values)
            if isinstance(answer, torch.Tensor) and answer.isnan().any() and all(map(is_finite, values)):
                return "NaN from finite logits and labels"
    except (ValueError, TypeError) as error:
        return None if str(error) else "an error without a word"
    except Hang:
        return "hangs"
    except BaseException as error:
        return f"{type(error).__name__}: {str(error)[:150]}"
    return None


def is_finite(value: Any) -> bool:
    """Whether a tensor of floats is so, and of moderate size; other values pass: a bad option must not give NaN."""
    part = value.share if isinstance(value, MixedTarget) else value
    if not isinstance(part, torch.Tensor) or not part.is_floating_point():
        return True
    return bool((part.abs() < 1e30).all())
