"""A mistake of the user is named in words, and nothing has changed when the error comes."""

import re

import oracle
import pytest
import torch
from oracle import assert_same_state, batches, long_tail, snapshot

from spectail import CAR, CARLoss, ClassCounts, MixedTarget, spectral
from spectail import functional as SF

COUNTS = long_tail(7)
LOGITS = torch.randn(4, 7, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 3, 6, 1])
NAN, INF = float("nan"), float("inf")


def with_value(tensor, value):
    tensor = tensor.clone()
    tensor[2] = value
    return tensor


def soft(**change):
    labels = torch.nn.functional.one_hot(LABELS, 7).float()
    labels[2] = torch.tensor([change.get("first", 0.5), 1 - change.get("first", 0.5), 0, 0, 0, 0, 0])
    return labels * change.get("scale", 1.0)


BAD_BATCHES = {
    "label too large": (LOGITS, with_value(LABELS, 7), ValueError, r"labels must lie in \[0, 7\).*found 7"),
    "label negative": (LOGITS, with_value(LABELS, -1), ValueError, r"labels must lie in \[0, 7\).*found -1"),
    "too few classes": (LOGITS[:, :6], LABELS % 6, ValueError, r"6 classes and class_counts 7"),
    "too many classes": (torch.zeros(4, 8), LABELS, ValueError, r"8 classes and class_counts 7"),
    "NaN": (with_value(LOGITS, NAN), LABELS, ValueError, r"logits contain NaN"),
    "inf": (with_value(LOGITS, INF), LABELS, ValueError, r"logits contain infinite"),
    "-inf": (with_value(LOGITS, -INF), LABELS, ValueError, r"logits contain infinite"),
    "NaN in float64": (with_value(LOGITS, NAN).double(), LABELS, ValueError, r"logits contain NaN"),
    "overflow of float16": (with_value(LOGITS, 1e6).half(), LABELS, ValueError, r"logits contain infinite"),
    "empty": (LOGITS[:0], LABELS[:0], ValueError, r"batch is empty"),
    "empty and soft": (LOGITS[:0], soft()[:0], ValueError, r"batch is empty"),
    "integer logits": (LOGITS.long(), LABELS, TypeError, r"logits must be .*floating"),
    "complex logits": (LOGITS.to(torch.complex64), LABELS, TypeError, r"logits must be .*floating"),
    "flat logits": (LOGITS[0], LABELS[:1], TypeError, r"logits must be .*shape \(N, 7\)"),
    "cubic logits": (LOGITS[None], LABELS, TypeError, r"logits must be .*shape \(N, 7\)"),
    "listed logits": (LOGITS.tolist(), LABELS, TypeError, r"logits must be .*got list"),
    "float labels": (LOGITS, LABELS.float(), TypeError, r"class indices as integers.*float32"),
    "bool labels": (LOGITS, LABELS > 1, TypeError, r"class indices as integers.*bool"),
    "listed labels": (LOGITS, LABELS.tolist(), TypeError, r"target must be a tensor or a MixedTarget.*list"),
    "array of labels": (
        LOGITS,
        LABELS.numpy(),
        TypeError,
        r"target must be a tensor.*ndarray; convert it with torch.as_tensor",
    ),
    "no labels": (LOGITS, None, TypeError, r"target must be a tensor or a MixedTarget"),
    "fewer labels": (LOGITS, LABELS[:3], ValueError, r"target must have shape \(4,\).*got \(3,\)"),
    "scalar label": (LOGITS, LABELS[0], ValueError, r"target must have shape \(4,\)"),
    "integer soft labels": (LOGITS, soft().long(), TypeError, r"soft labels .*floating.*\.float\(\)"),
    "column of labels": (LOGITS, LABELS[:, None], TypeError, r"shape \(N,\), take \.squeeze\(1\)"),
    "narrow soft labels": (LOGITS, soft()[:, :6], ValueError, r"soft labels .*\(4, 7\).*\(4, 6\)"),
    "soft labels sum to 0.9": (LOGITS, soft(scale=0.9), ValueError, r"soft labels must sum to 1.*0\.9"),
    "soft labels of NaN": (LOGITS, soft(first=NAN), ValueError, r"soft labels must sum to 1.*row 2"),
    "negative soft labels": (LOGITS, soft(first=-0.5), ValueError, r"soft labels must not be negative.*-0\.5"),
    "lam above 1": (LOGITS, (LABELS, LABELS, 1.5), ValueError, r"\[0, 1\].*1\.5"),
    "lam below 0": (LOGITS, (LABELS, LABELS, torch.tensor([0, 0, 0, -0.1])), ValueError, r"\[0, 1\].*-0\.1"),
    "lam of NaN": (LOGITS, (LABELS, LABELS, NAN), ValueError, r"\[0, 1\].*nan"),
    "lam too long": (LOGITS, (LABELS, LABELS, torch.rand(5)), ValueError, r"lam.*\(4,\).*\(5,\)"),
    "partners too few": (LOGITS, (LABELS, LABELS[:3], 0.5), ValueError, r"one shape"),
    "mixed too few": (LOGITS, (LABELS[:3], LABELS[:3], 0.5), ValueError, r"target\.a must have shape \(4,\)"),
    "mixed label too large": (
        LOGITS,
        (LABELS, with_value(LABELS, 9), 0.5),
        ValueError,
        r"labels must lie in .*found 9",
    ),
    "mixed float label": (LOGITS, (LABELS, LABELS.float(), 0.5), TypeError, r"target\.b must hold class indices"),
}


def call(fn, logits, target):
    return fn(logits, MixedTarget(*target) if isinstance(target, tuple) else target)


def test_logits_and_labels_the_wrong_way_round():
    with pytest.raises(TypeError, match="The logits come first, then the labels"):
        CARLoss(COUNTS)(LABELS, LOGITS)


def assert_refused(case, error, words, fn, *arguments, **options):
    """As pytest.raises does, with a name for the case."""
    said = "is not refused"
    try:
        fn(*arguments, **options)
    except error as found:
        said = str(found)
    assert re.search(words, said), f"{case}: {said}"


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("make", [CAR, CARLoss, lambda counts: CAR(counts, ema="class", ema_start="first")])
def test_a_bad_batch_is_refused_and_changes_nothing(make, training):
    module = make(COUNTS)
    for batch in batches(COUNTS, 2):
        module(*batch)
    before = snapshot(module.train(training))
    for case, (logits, target, error, words) in BAD_BATCHES.items():
        assert_refused(case, error, words, call, module, logits, target)
        assert_same_state(module, before)


@pytest.mark.parametrize("num_classes", [60, 200, 2100])
def test_a_bad_batch_changes_nothing_for_many_classes(num_classes):
    car = CAR(long_tail(num_classes))
    logits, target = oracle.one_batch(num_classes, size=4)
    car(logits, target)
    before = snapshot(car)
    for bad in ((with_value(logits, NAN), target), (logits, with_value(target, num_classes))):
        with pytest.raises(ValueError, match=r"NaN|labels must lie"):
            car(*bad)
    assert_same_state(car, before)


def test_training_goes_on_after_a_refused_batch_as_if_it_had_not_been():
    once, never = CAR(COUNTS), CAR(COUNTS)
    for logits, target in batches(COUNTS, 3):
        with pytest.raises(ValueError, match="NaN"):
            once(with_value(logits, NAN), target)
        assert torch.equal(once(logits, target), never(logits, target))
    assert_same_state(once, snapshot(never))


FOR_CAR_ONLY = ("too few classes", "too many classes", "empty", "empty and soft")
SHARED = {name: row for name, row in BAD_BATCHES.items() if name not in FOR_CAR_ONLY}


@pytest.mark.parametrize("fn", [SF.soft_confusion, lambda *batch: SF.margin_confusion(*batch, gamma=0.5)])
def test_the_functions_refuse_the_same_batches(fn):
    for case, (logits, target, error, words) in SHARED.items():
        assert_refused(case, error, words.replace(r"\(N, 7\)", r"\(N, K\)"), call, fn, logits, target)


BAD_OPTIONS = [
    *[("beta", value) for value in (-0.1, 1.0, 2, NAN)],
    *[("r0", value) for value in (0, -1.0, NAN, INF)],
    *[("gamma", value) for value in (-0.5, NAN, INF)],
    *[("prior_shift", value) for value in (NAN, INF, -INF)],
    ("competitors", "others"),
    ("ema", "sample"),
    ("ema_start", "one"),
    ("weighting", "uniform"),
    ("surrogate", "hard"),
    ("mixed", "mask"),
    ("solver", "qr"),
    ("sync", "always"),
    ("on_empty", "drop"),
    ("validate", "never"),
]


@pytest.mark.parametrize(
    "make", [CAR, CARLoss, CAR.reference, CAR.classwise, CARLoss.reference, CARLoss.classwise, CARLoss.balanced]
)
def test_a_bad_option_is_named(make):
    for option, value in BAD_OPTIONS:
        wanted = rf"{option} .*must .*{value}"
        assert_refused(f"{option}={value}", ValueError, wanted, make, COUNTS, **{option: value})


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"alpha": -0.1}, ValueError, r"alpha must be 0 or more.*-0\.1"),
        ({"alpha": NAN}, ValueError, "alpha"),
        ({"alpha": INF}, ValueError, "alpha"),
        ({"start_step": -1}, ValueError, r"start_step .*-1"),
        ({"warmup_steps": -2}, ValueError, r"warmup_steps .*-2"),
        ({"base": "focal"}, TypeError, r"base must be callable.*str"),
        ({"betta": 0.5}, TypeError, "betta"),
    ],
)
def test_a_bad_option_of_the_loss_is_named(options, error, words):
    with pytest.raises(error, match=words):
        CARLoss(COUNTS, **options)


@pytest.mark.parametrize("make", [CAR, CARLoss, SF.class_weights])
@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ([5, 0, 3], r"positive; class 1 has 0 images.*on_empty='ignore'"),
        (ClassCounts([5, 0], names=["cat", "otter"]), r"class 1 \('otter'\) has 0 images"),
        ([5, -2, 3], r"negative; class 1 has -2"),
        ([0, 0], "all zero"),
        ([7], "two classes or more"),
        ([0.5, 0.5], "whole numbers"),
    ],
)
def test_bad_counts_are_named(make, counts, words):
    with pytest.raises(ValueError, match=words):
        make(counts)


@pytest.mark.parametrize("counts", [[5, -2, 3], [0, 0]])
def test_ignoring_empty_classes_ignores_nothing_else(counts):
    with pytest.raises(ValueError, match="class_counts"):
        CAR(counts, on_empty="ignore")


@pytest.mark.parametrize(
    ("fn", "error", "words"),
    [
        (lambda: SF.soft_confusion(LOGITS, LABELS, competitors="others"), ValueError, "competitors"),
        (lambda: SF.soft_confusion(LOGITS, LABELS, surrogate="hard"), ValueError, "surrogate"),
        (lambda: SF.soft_confusion(LOGITS, LABELS, mixed="mask"), ValueError, "mixed"),
        (lambda: SF.soft_confusion(LOGITS, LABELS, gamma=-1.0), ValueError, "gamma"),
        (lambda: SF.margin_confusion(LOGITS, LABELS, -1.0), ValueError, "gamma"),
        (lambda: SF.margin_confusion(LOGITS, LABELS, NAN), ValueError, "gamma"),
        (lambda: SF.margin_confusion(LOGITS, LABELS, 0.0, mixed="mask"), ValueError, "mixed"),
        (lambda: SF.confusion(LOGITS, LABELS, 7), TypeError, "pred.*argmax"),
        (lambda: SF.confusion(LABELS.float(), LABELS, 7), TypeError, "pred"),
        (lambda: SF.confusion(LABELS[:3], LABELS, 7), ValueError, r"target must have shape \(3,\)"),
        (lambda: SF.confusion(LABELS, with_value(LABELS, 8), 7), ValueError, r"labels must lie in \[0, 7\).*8"),
        (lambda: SF.confusion(with_value(LABELS, 8), LABELS, 7), ValueError, r"\[0, 7\).*8"),
        (lambda: SF.confusion(with_value(LABELS, 7), LABELS, 7), ValueError, r"\[0, 7\).*7"),
        (lambda: SF.confusion(with_value(LABELS, -100), LABELS, 7), ValueError, r"pred.*-100"),
        (lambda: SF.class_weights(COUNTS, r0=0.0), ValueError, "r0"),
        (lambda: SF.class_weights(COUNTS, on_empty="drop"), ValueError, "on_empty"),
        (lambda: SF.class_errors(torch.zeros(2, 3)), ValueError, r"square.*\(2, 3\)"),
        (lambda: SF.worst_class_error(torch.zeros(2, 2), torch.ones(3)), ValueError, r"weights .*\(2,\).*\(3,\)"),
    ],
)
def test_the_functions_name_the_problem(fn, error, words):
    with pytest.raises(error, match=words):
        fn()


@pytest.mark.parametrize("pred", [LABELS[:0]])
def test_no_samples_have_no_confusion(pred):
    for found in (
        SF.confusion(pred, pred, 7),
        SF.soft_confusion(LOGITS[:0], pred),
        SF.margin_confusion(LOGITS[:0], pred, 0),
    ):
        assert torch.equal(found, torch.zeros(7, 7))


@pytest.mark.parametrize("name", ["beta", "r0", "gamma", "prior_shift"])
@pytest.mark.parametrize("value", ["0.5", None, True])
def test_an_option_that_is_no_number_is_named(name, value):
    with pytest.raises(TypeError, match=f"{name} must be a number"):
        CAR([5, 1], **{name: value})


def test_lists_in_place_of_matrices_are_refused_in_words():
    with pytest.raises(TypeError, match="got list"):
        spectral.top_singular([[1.0]])
    with pytest.raises(TypeError, match="got list"):
        SF.worst_class_error([[0.0]])


def test_labels_in_place_of_counts_are_recognised():
    labels = torch.tensor([0] * 50 + [1] * 10 + [2] * 5)
    with pytest.raises(ValueError, match=r"these 65 numbers from 0 to 2 look like labels. .*ClassCounts.from_targets"):
        CARLoss(labels)
    with pytest.raises(ValueError, match="class 1 has 0 images"):
        CARLoss([5, 0, 3])
    with pytest.raises(ValueError, match=r"numpy.unique\(labels, return_inverse=True\)"):
        ClassCounts.from_targets(["cat", "dog"])


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("label_smoothing", r"base=torch.nn.CrossEntropyLoss\(label_smoothing=...\)"),
        ("reduction", "the loss is a mean over the batch"),
        ("bta", "did you mean 'beta'"),
    ],
)
def test_options_that_car_does_not_have(option, words):
    for make in (CARLoss, CARLoss.classwise, CARLoss.balanced):
        with pytest.raises(TypeError, match=f"CARLoss has no option '{option}'.*{words}"):
            make([10, 5], **{option: 0.1})


@pytest.mark.parametrize("kind", [CAR, CARLoss, CARLoss.balanced])
@pytest.mark.parametrize("options", [{}, {"solver": "iterative"}, {"solver": "fixed"}, {"norm": "worst"}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_probabilities_in_place_of_logits_are_warned_of_once(kind, options, dtype):
    criterion, rows = kind(COUNTS, **options), LOGITS.softmax(1).to(dtype)
    with pytest.warns(UserWarning, match="expects logits.*sums to 1.*before the softmax") as seen:
        criterion(rows, LABELS)
    criterion(rows, LABELS)  # a second warning would be an error
    assert [warning.filename for warning in seen] == [__file__]


@pytest.mark.parametrize("solver", ["auto", "iterative", "fixed"])
def test_logits_are_not_taken_for_probabilities(solver):
    """Warnings are errors here: one row that sums to something else, or one negative value, is enough."""
    rows = LOGITS.softmax(1)
    negative = rows + torch.tensor([[0.9, -0.9, 0, 0, 0, 0, 0], *[[0.0] * 7] * 3])
    for logits in (with_value(rows, 0.5), negative, rows.log(), torch.zeros(4, 7)):
        CAR(COUNTS, solver=solver)(logits, LABELS)
    late = CAR(COUNTS, solver=solver)
    late(LOGITS, LABELS)
    late(rows, LABELS)  # the first call only
    CAR(COUNTS, solver="fixed", validate=False)(rows, LABELS)  # where values are not looked at
