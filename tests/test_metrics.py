"""Metrics against scikit-learn, torchmetrics, numpy and slow loops."""

import json
import math
import time
import warnings
from fractions import Fraction

import numpy as np
import pytest
import rank_metrics
import scipy.sparse.linalg
import sklearn.metrics
import torch

import spectail._utils.torchvision_ops  # noqa: F401 - before torchmetrics, which imports torchvision
from spectail import ClassCounts
from spectail.metrics import Metrics, wilson_interval

LIKE = {"rel": 1e-9, "abs": 1e-9}


def close(value, **options):
    return pytest.approx(value, **{**LIKE, **options})


def sample(classes=12, count=400, present=None, seed=0, dtype=torch.float32):
    """Logits of a model that is right about half of the time, and labels of the classes ``present``."""
    draw = np.random.default_rng(seed)
    target = draw.choice(present if present is not None else classes, count)
    logits = draw.normal(size=(count, classes)) * 1.5
    logits[np.arange(count), target] += draw.normal(1.5, 1.5, count)
    return torch.tensor(logits, dtype=dtype), torch.tensor(target)


CASES = {
    "all classes": sample(),
    "absent classes": sample(present=[0, 2, 3, 7, 11]),
    "one class": sample(present=[4], count=30),
    "two classes": sample(classes=2, count=50),
    "few images": sample(count=15),
    "float64": sample(dtype=torch.float64),
    "ties": (torch.randint(0, 3, (300, 12), generator=torch.Generator().manual_seed(1)).float(), sample(count=300)[1]),
    "always one answer": (torch.eye(12)[[5] * 60], sample(count=60)[1]),
    "all wrong": (torch.eye(12)[[*range(1, 12), 0] * 3], torch.arange(12).repeat(3)),
    "all right": (torch.eye(12)[[*range(12)] * 3], torch.arange(12).repeat(3)),
}
case = pytest.mark.parametrize(("logits", "target"), CASES.values(), ids=CASES.keys())


def measured(logits, target, counts=None, convention="count"):
    metrics = Metrics(counts if counts is not None else [2 ** (11 - j) for j in range(logits.shape[1])], convention)
    metrics.update(logits, target)
    return metrics


def probabilities(logits):
    """Softmax in float64 by numpy."""
    values = logits.double().numpy()
    values = np.exp(values - values.max(1, keepdims=True))
    return values / values.sum(1, keepdims=True)


def recalls(logits, target):
    """Accuracy of each class by a slow loop; None where there is no image."""
    predicted, found = logits.numpy().argmax(1), []
    for label in range(logits.shape[1]):
        answers = [int(p) for p, y in zip(predicted, target.tolist(), strict=True) if y == label]
        found.append(Fraction(sum(p == label for p in answers), len(answers)) if answers else None)
    return found


@case
def test_accuracies_equal_those_of_scikit_learn(logits, target):
    result, truth, predicted = measured(logits, target).compute(), target.numpy(), logits.numpy().argmax(1)
    present = np.unique(truth)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a predicted class may have no test image
        balanced = sklearn.metrics.balanced_accuracy_score(truth, predicted)
    recall = sklearn.metrics.recall_score(truth, predicted, labels=present, average=None, zero_division=0)
    assert result["overall"] == close(100 * sklearn.metrics.accuracy_score(truth, predicted))
    assert result["balanced"] == close(100 * balanced)
    assert [value for value in result["per_class"] if value is not None] == close((100 * recall).tolist())
    assert [label for label, value in enumerate(result["per_class"]) if value is not None] == present.tolist()
    f1 = sklearn.metrics.f1_score(truth, predicted, labels=present, average="macro", zero_division=0)
    assert result["macro_f1"] == close(100 * f1)


@case
def test_the_confusion_matrix_has_predictions_in_rows(logits, target):
    from torchmetrics import classification

    classes = logits.shape[1]
    metrics = measured(logits, target)
    wanted = sklearn.metrics.confusion_matrix(target.numpy(), logits.numpy().argmax(1), labels=range(classes))
    assert np.array_equal(metrics.confusion.numpy(), wanted.T)
    other = classification.MulticlassConfusionMatrix(classes)(logits.argmax(1), target)
    assert torch.equal(metrics.confusion.long(), other.T.long())
    assert metrics.compute()["per_class_images"] == wanted.sum(1).tolist()
    assert not metrics.confusion.is_floating_point()


@case
def test_accuracies_equal_those_of_torchmetrics(logits, target):
    from torchmetrics import classification

    result, classes = measured(logits, target).compute(), logits.shape[1]
    predicted = logits.argmax(1)
    micro = classification.MulticlassAccuracy(classes, average="micro")(predicted, target)
    each = classification.MulticlassAccuracy(classes, average=None)(predicted, target)
    assert result["overall"] == close(100 * float(micro), rel=1e-6)
    for label, value in enumerate(result["per_class"]):
        if (target == label).any():
            assert value == close(100 * float(each[label]), rel=1e-6)
        else:
            assert value is None
    if len(target.unique()) == classes:
        macro = classification.MulticlassAccuracy(classes, average="macro")(predicted, target)
        assert result["balanced"] == close(100 * float(macro), rel=1e-6)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("classes", [2, 12, 150])
def test_calibration_error_equals_that_of_torchmetrics(classes, seed):
    from torchmetrics import classification

    logits, target = sample(classes, 500, seed=seed)
    wanted = classification.MulticlassCalibrationError(classes, n_bins=15, norm="l1")(logits, target)
    assert measured(logits, target, [5] * classes).compute()["ece"] == close(100 * float(wanted), rel=1e-5)


def test_calibration_error_by_hand():
    """The bins meet at 9/15: confidences 0.59 and 0.58 share one, 0.61 has its own; certainty belongs to the last."""
    logits = torch.tensor([[0.59, 0.41], [0.61, 0.39], [0.58, 0.42]], dtype=torch.float64).log()
    result = measured(logits, torch.tensor([0, 1, 1]), [5, 5]).compute()
    assert result["ece"] == close(100 * (abs(0.59 + 0.58 - 1) + 0.61) / 3)
    sure = measured(torch.tensor([[1000.0, 0.0]] * 2), torch.tensor([0, 1]), [5, 5]).compute()
    assert sure["ece"] == close(50.0)


@case
def test_likelihood_and_brier_score_of_a_slow_loop(logits, target):
    result, share = measured(logits, target).compute(), probabilities(logits)
    nll = brier = 0.0
    for row, label in zip(share, target.tolist(), strict=True):
        nll -= math.log(row[label])
        brier += sum((value - (place == label)) ** 2 for place, value in enumerate(row))
    tolerance = 1e-10 if logits.dtype == torch.float64 else 2e-6
    assert result["nll"] == close(nll / len(target), rel=tolerance)
    assert result["brier"] == close(brier / len(target), rel=tolerance)
    if logits.shape[1] > 2 and len(target.unique()) > 2:
        wanted = sklearn.metrics.log_loss(target.numpy(), share, labels=range(logits.shape[1]))
        assert result["nll"] == close(wanted, rel=tolerance)


@case
def test_means_over_classes_of_a_slow_loop(logits, target):
    result = measured(logits, target).compute()
    known = sorted(value for value in recalls(logits, target) if value is not None)
    zero = sum(value == 0 for value in known)
    assert result["zero_classes"] == zero
    for name, parts in (("bottom_10pct", 10), ("bottom_20pct", 5)):
        lowest = known[: -(-len(known) // parts)]
        assert result[name] == close(100 * float(sum(lowest) / len(lowest)))
    harmonic = Fraction(0) if zero else len(known) / sum(1 / value for value in known)
    assert result["harmonic_mean"] == close(100 * float(harmonic))
    geometric = math.prod(known) ** (1 / len(known))
    assert result["geometric_mean"] == close(100 * geometric)


def test_the_means_of_known_numbers():
    """Ten images per class; 5, 10 and 10 right of classes 0, 1, 2."""
    predicted = torch.tensor([0] * 5 + [1] * 5 + [1] * 10 + [2] * 10)
    metrics = Metrics([500, 50, 5])
    metrics.update_predicted(predicted, torch.arange(3).repeat_interleave(10))
    result = metrics.compute()
    assert result["overall"] == close(100 * 25 / 30)
    assert result["harmonic_mean"] == close(75.0)
    assert result["geometric_mean"] == close(100 * 0.5 ** (1 / 3))
    assert result["bottom_10pct"] == result["bottom_20pct"] == 50.0
    assert (result["head"], result["medium"], result["tail"]) == (50.0, 100.0, 100.0)
    assert result["macro_f1"] == close(100 * (2 / 3 + 4 / 5 + 1) / 3)


def test_the_bottom_tenth_rounds_up_and_a_fifth_of_25_is_five():
    metrics = Metrics([5] * 25)
    target = torch.arange(25).repeat_interleave(4)
    predicted = target.clone()
    predicted[:1] = 9  # class 0: 75 %
    predicted[4:6] = 9  # class 1: 50 %
    predicted[8:11] = 9  # class 2: 25 %
    metrics.update_predicted(predicted, target)
    assert metrics.compute()["bottom_10pct"] == 50.0  # three of 25 classes
    assert metrics.compute()["bottom_20pct"] == 70.0


COUNTS = [300, 101, 100, 99, 21, 20, 19, 5, 1, 700, 20, 100]
GROUPS = {  # label by label from the definitions
    "count": ([0, 1, 9], [2, 3, 4, 5, 10, 11], [6, 7, 8]),
    "oltr": ([0, 1, 2, 9, 11], [3, 4], [5, 6, 7, 8, 10]),
    "thirds": ([0, 1, 2, 9], [3, 4, 5, 11], [6, 7, 8, 10]),
}


@pytest.mark.parametrize("convention", GROUPS)
@pytest.mark.parametrize("name", ["all classes", "absent classes", "one class"])
def test_groups_under_each_convention(convention, name):
    logits, target = CASES[name]
    result, each = measured(logits, target, COUNTS, convention).compute(), recalls(logits, target)
    assert result["groups"] == {
        "convention": convention,
        **{group: len(labels) for group, labels in zip(("head", "medium", "tail"), GROUPS[convention], strict=True)},
    }
    for group, labels in zip(("head", "medium", "tail"), GROUPS[convention], strict=True):
        known = [each[label] for label in labels if each[label] is not None]
        assert result[group] == (close(100 * float(sum(known) / len(known))) if known else None)


def test_an_empty_group_is_none_and_json_null():
    result = measured(torch.eye(2), torch.tensor([0, 1]), [500, 400]).compute()
    assert (result["head"], result["medium"], result["tail"]) == (100.0, None, None)
    assert json.loads(json.dumps(result, allow_nan=False))["tail"] is None


def test_a_class_without_test_images_is_none_everywhere():
    result = measured(torch.eye(3)[[0, 0, 2]], torch.tensor([0, 0, 0]), [500, 50, 5]).compute()
    assert result["per_class"] == [close(200 / 3), None, None]
    assert (result["medium"], result["tail"]) == (None, None)
    assert result["balanced"] == result["worst_test"] == result["bottom_10pct"] == close(200 / 3)
    assert result["zero_classes"] == 0
    assert result["worst_test_next"] == []
    assert result["per_class_images"] == [3, 0, 0]


def test_the_fields_of_results_json():
    result = measured(*CASES["absent classes"]).compute()
    fields = (
        "overall head medium tail worst_test worst_test_class worst_test_interval zero_classes bottom_10pct "
        "bottom_20pct harmonic_mean geometric_mean macro_f1 ece spectral_norm per_class groups"
    )
    assert set(result) >= set(fields.split())
    assert json.loads(json.dumps(result, allow_nan=False)) == result


@pytest.mark.parametrize(
    ("right", "total", "low", "high"),
    [
        (10, 100, 0.0552, 0.1744),
        (5, 50, 0.0435, 0.2136),
        (0, 3, 0.0, 0.5615),
        (3, 3, 0.4385, 1.0),
        (50, 100, 0.4038, 0.5962),
        (1, 1, 0.2065, 1.0),
    ],
)
def test_the_interval_of_wilson_at_published_values(right, total, low, high):
    assert wilson_interval(right, total) == pytest.approx((low, high), abs=6e-5)


@pytest.mark.parametrize(("right", "total"), [(0, 1), (1, 1), (0, 3), (3, 3), (2, 7), (49, 50), (3, 8142)])
def test_the_ends_of_the_interval_solve_the_equation_of_wilson(right, total):
    """(share - p)^2 = z^2 p (1 - p) / n at both ends p, which is how the interval is defined."""
    ends, square = wilson_interval(right, total), Fraction(1.959963984540054) ** 2
    for end in map(Fraction, ends):
        gap = (Fraction(right, total) - end) ** 2 - square * end * (1 - end) / total
        assert abs(float(gap)) < 1e-15
    assert 0 <= ends[0] <= right / total <= ends[1] <= 1
    assert ends[0] < ends[1]


def test_without_observations_there_is_no_interval():
    assert wilson_interval(0, 0) is None


def test_the_worst_class_and_its_runner_ups():
    right = [4, 1, 3, 0, 2, 3, 4, 0]  # of four images each; ties in label order
    names = [f"c{label}" for label in range(8)]
    metrics = Metrics(ClassCounts([9] * 8, names))
    for label, hits in enumerate(right):
        predicted = [label] * hits + [(label + 1) % 8] * (4 - hits)
        metrics.update_predicted(torch.tensor(predicted), torch.tensor([label] * 4))
    result = metrics.compute()
    assert (result["worst_test"], result["worst_test_class"], result["zero_classes"]) == (0.0, "c3", 2)
    assert [(entry["class"], entry["accuracy"]) for entry in result["worst_test_next"]] == [
        ("c7", 0.0), ("c1", 25.0), ("c4", 50.0), ("c2", 75.0)
    ]  # fmt: skip
    assert result["worst_test_interval"] == close([0.0, 100 * 3.8414588206941227 / (4 + 3.8414588206941227)])
    low, high = wilson_interval(1, 4)
    assert result["worst_test_next"][1]["interval"] == close([100 * low, 100 * high])


def test_an_absent_class_is_never_the_worst():
    result = measured(torch.eye(4)[[1, 1, 3]], torch.tensor([1, 3, 3]), [9] * 4).compute()
    assert (result["worst_test"], result["worst_test_class"]) == (50.0, "3")
    assert [entry["class"] for entry in result["worst_test_next"]] == ["1"]


def spectral_oracle(metrics, counts, r0=0.2):
    """The definition in numpy: shares of each true class, no diagonal, columns times (n / N + r0)^(-1/2)."""
    matrix = metrics.confusion.numpy().astype(float)
    for label in range(len(matrix)):
        matrix[:, label] /= max(matrix[:, label].sum(), 1)
    np.fill_diagonal(matrix, 0)
    return np.linalg.norm(matrix * (np.asarray(counts) / np.sum(counts) + r0) ** -0.5, 2)


@case
def test_the_spectral_norm(logits, target):
    counts = [0, 1, 2, 5, 500, 3, 80, 9, 7, 60, 4, 100][: logits.shape[1]]
    metrics = measured(logits, target, counts)
    assert metrics.compute()["spectral_norm"] == close(spectral_oracle(metrics, counts))
    assert metrics.spectral_norm(r0=0.05) == close(spectral_oracle(metrics, counts, 0.05))


@pytest.mark.parametrize("wrong", [0, 1, 2, 400])
def test_the_spectral_norm_of_many_classes(wrong):
    classes = 150
    target = torch.arange(classes).repeat(4)
    predicted = target.clone()
    predicted[:wrong] = torch.randint(0, classes, (wrong,), generator=torch.Generator().manual_seed(0))
    counts = [1000 // (label + 1) for label in range(classes)]
    metrics = Metrics(counts)
    metrics.update_predicted(predicted, target)
    assert metrics.compute()["spectral_norm"] == close(spectral_oracle(metrics, counts), rel=1e-7)


@pytest.mark.parametrize("classes", [2, 300])
def test_without_an_error_the_spectral_norm_is_zero(classes):
    metrics = Metrics([5] * classes)
    assert metrics.spectral_norm() == 0.0  # nothing added yet
    metrics.update_predicted(torch.arange(classes), torch.arange(classes))
    assert metrics.compute()["spectral_norm"] == 0.0


def test_one_class_alone_cannot_be_confused():
    with pytest.raises(ValueError, match="two classes or more"):
        Metrics([7])


@pytest.mark.parametrize("classes", [4, 300])
def test_the_spectral_norm_of_one_class_in_the_test_set(classes):
    """One column alone: its length times the weight. Of six images two went to 0, one to 3, and three are right."""
    counts = [3] * classes
    metrics = Metrics(counts)
    metrics.update_predicted(torch.tensor([0, 0, 1, 1, 3, 1]), torch.tensor([1] * 6))
    wanted = math.hypot(2 / 6, 1 / 6) * (1 / classes + 0.2) ** -0.5
    assert metrics.spectral_norm() == close(wanted, rel=1e-12, abs=0)
    assert metrics.compute()["per_class_images"] == [0, 6] + [0] * (classes - 2)


PATTERNS = {
    "anywhere": lambda draw, target: draw.integers(0, 300, target.size),
    "to frequent classes": lambda draw, target: draw.zipf(1.5, target.size) % 300,
    "to neighbours": lambda draw, target: (target + draw.integers(-2, 3, target.size)) % 300,
    "in blocks": lambda draw, target: target // 10 * 10,
    "always to one": lambda draw, target: np.full(target.size, 3),
}


@pytest.mark.parametrize("share", [0.002, 0.4, 1.0])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_spectral_norm_of_sparse_confusions(pattern, share):
    draw = np.random.default_rng(0)
    target = np.repeat(np.arange(300), 5)
    predicted = np.where(draw.random(target.size) < share, PATTERNS[pattern](draw, target), target)
    counts = np.maximum(1000 / np.arange(1, 301), 1).astype(int)
    metrics = Metrics(counts)
    metrics.update_predicted(torch.tensor(predicted), torch.tensor(target))
    assert metrics.spectral_norm() == close(spectral_oracle(metrics, counts), rel=1e-12, abs=0)


def test_the_spectral_norm_of_hundreds_of_nearly_equal_confusions():
    """Every class is taken for the next one, so the singular values are the weights: too close for a search."""
    classes = 800
    counts = (1e7 * np.exp(-5 * np.arange(classes) / classes)).astype(int)
    metrics = Metrics(counts)
    metrics.update_predicted((torch.arange(classes) + 1) % classes, torch.arange(classes))
    assert metrics.spectral_norm() == close((counts.min() / counts.sum() + 0.2) ** -0.5, rel=1e-12, abs=0)


def test_computing_changes_no_state():
    metrics = measured(*CASES["all classes"])
    before = {name: value.clone() for name, value in metrics.state_dict().items()}
    assert metrics.compute() == metrics.compute()
    assert all(torch.equal(value, before[name]) for name, value in metrics.state_dict().items())


def test_nothing_added_is_an_error():
    metrics = Metrics([5, 5])
    with pytest.raises(ValueError, match="nothing to measure"):
        metrics.compute()
    metrics.update(torch.zeros(0, 2), torch.zeros(0, dtype=torch.long))
    with pytest.raises(ValueError, match="nothing to measure"):
        metrics.compute()


def rounding(logits):
    """Softmax may round a row differently when it stands elsewhere in a batch: by a few units in the last place. The
    calibration error is a difference of confidences and several times smaller than they are, so 64 units for all."""
    return {"rel": 64 * torch.finfo(logits.dtype).eps}


def assert_same(result, wanted, **options):
    assert result.keys() == wanted.keys()
    for name, value in wanted.items():
        if isinstance(value, float):
            assert result[name] == close(value, **options), name
        else:
            assert result[name] == value, name


@pytest.mark.parametrize("size", [1, 7, 64, 399, 400])
@pytest.mark.parametrize("name", ["all classes", "float64"])
def test_batches_of_any_size_give_one_result(size, name):
    logits, target = CASES[name]
    metrics = Metrics(COUNTS)
    for part, labels in zip(logits.split(size), target.split(size), strict=True):
        metrics.update(part, labels)
    result = metrics.compute()
    assert_same(result, measured(logits, target, COUNTS).compute(), **rounding(logits))
    share = probabilities(logits)[np.arange(len(target)), target.numpy()]
    assert result["nll"] == close(-np.log(share).mean(), **rounding(logits))


def test_the_order_of_samples_does_not_matter():
    logits, target = CASES["all classes"]
    order = torch.randperm(len(target), generator=torch.Generator().manual_seed(0))
    assert_same(
        measured(logits[order], target[order]).compute(), measured(logits, target).compute(), **rounding(logits)
    )


def test_the_state_survives_a_checkpoint(tmp_path):
    logits, target = CASES["all classes"]
    half = measured(logits[:200], target[:200])
    torch.save(half.state_dict(), tmp_path / "state.pt")
    resumed = Metrics([2 ** (11 - j) for j in range(12)])
    resumed.load_state_dict(torch.load(tmp_path / "state.pt"))
    assert resumed.compute() == half.compute()
    resumed.update(logits[200:], target[200:])
    assert_same(resumed.compute(), measured(logits, target).compute(), **rounding(logits))
    assert not list(resumed.parameters())


def test_reset_forgets_everything():
    metrics = measured(*CASES["all classes"])
    metrics.reset()
    with pytest.raises(ValueError, match="nothing to measure"):
        metrics.compute()
    metrics.update(*CASES["few images"])
    assert metrics.compute() == measured(*CASES["few images"]).compute()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_logits_of_any_precision(dtype):
    logits, target = CASES["all classes"]
    rounded = logits.to(dtype)
    result = measured(rounded, target).compute()
    assert_same(result, measured(rounded.float(), target).compute(), rel=1e-6)  # nothing is rounded a second time
    assert result["overall"] == close(measured(logits, target).compute()["overall"], abs=2)


def test_float64_logits_are_measured_in_float64():
    logits, target = CASES["float64"]
    share = probabilities(logits)[np.arange(len(target)), target.numpy()]
    assert measured(logits, target).compute()["nll"] == close(-np.log(share).mean(), rel=1e-13, abs=0)


def test_the_prediction_is_the_largest_logit_however_close_the_next():
    """Softmax rounds both to one half; inference takes the larger logit, and so must the accuracy."""
    logits = torch.tensor([[0.0, 1e-8], [1e-8, 0.0]])
    assert logits.argmax(1).tolist() == [1, 0]
    assert measured(logits, torch.tensor([1, 0]), [5, 5]).compute()["overall"] == 100.0


def test_large_logits_stay_finite():
    logits = torch.tensor([[1e4, -1e4, 0.0], [-1e4, 1e4, 0.0]])
    result = measured(logits, torch.tensor([0, 0]), [5, 5, 5]).compute()
    assert (result["overall"], result["ece"], result["nll"], result["brier"]) == (50.0, 50.0, 1e4, 1.0)


def test_without_logits_there_is_no_calibration():
    logits, target = CASES["all classes"]
    metrics = Metrics(COUNTS)
    metrics.update_predicted(logits.argmax(1), target)
    result, wanted = metrics.compute(), measured(logits, target, COUNTS).compute()
    assert (result["ece"], result["nll"], result["brier"]) == (None, None, None)
    assert_same(result, {**wanted, "ece": None, "nll": None, "brier": None})


def test_measuring_builds_no_graph():
    logits, target = CASES["few images"]
    metrics = measured(logits.clone().requires_grad_(), target)
    assert not any(value.requires_grad for value in metrics.state_dict().values())


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
def test_labels_of_any_integer_type(dtype):
    logits, target = CASES["all classes"]
    assert measured(logits, target.to(dtype)).compute() == measured(logits, target).compute()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
def test_predictions_of_any_integer_type(dtype):
    """99 * 100 does not fit into a byte."""
    labels = torch.arange(100)
    metrics = Metrics([5] * 100)
    metrics.update_predicted(labels.to(dtype), labels)
    assert torch.equal(metrics.confusion, torch.eye(100, dtype=torch.int32))


@pytest.mark.parametrize(
    ("logits", "target", "words"),
    [
        (torch.zeros(2, 4), [0, 1], r"logits must have shape \(N, 3\); got \(2, 4\)"),
        (torch.zeros(3), [0, 1, 2], r"logits must have shape \(N, 3\); got \(3,\)"),
        (torch.zeros(2, 3, 1), [0, 1], r"logits must have shape \(N, 3\)"),
        (torch.zeros(2, 3), [0, 3], r"target must lie in \[0, 3\); got 0 to 3"),
        (torch.zeros(2, 3), [-1, 1], r"target must lie in \[0, 3\); got -1 to 1"),
        (torch.zeros(2, 3), [0, 1, 2], r"target"),
        (torch.zeros(2, 3), [1], r"target"),
        (torch.zeros(2, 3), [[0, 1], [1, 0]], r"target"),
        (torch.zeros(2, 3), [0.0, 1.0], r"target"),
    ],
)
def test_bad_input_is_refused_in_words_and_changes_nothing(logits, target, words):
    metrics = Metrics([5, 4, 3])
    with pytest.raises((ValueError, TypeError), match=words):
        metrics.update(logits, torch.tensor(target))
    assert not any(value.any() for value in metrics.state_dict().values())


def test_bad_predictions_are_refused_in_words():
    metrics = Metrics([5, 4, 3])
    with pytest.raises(ValueError, match=r"predicted must lie in \[0, 3\); got 1 to 7.*same classes"):
        metrics.update_predicted(torch.tensor([1, 7]), torch.tensor([1, 2]))
    assert not metrics.confusion.any()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_logits_that_are_not_finite_are_refused(value):
    """A diverged model predicts nothing: NaN must not count as class 0, nor reach results.json."""
    metrics = Metrics([5, 5])
    logits = torch.tensor([[value, 1.0]])
    with pytest.raises(ValueError, match=r"finite|NaN|infinite"):
        metrics.update(logits, torch.tensor([0]))
    assert not metrics.confusion.any()


def test_an_unknown_convention_is_refused():
    with pytest.raises(ValueError, match="convention must be one of"):
        Metrics([5, 5], convention="quarters")


def test_as_many_classes_as_inaturalist_2018():
    classes, draw = 8142, np.random.default_rng(0)
    target = np.repeat(np.arange(classes), 3)
    predicted = np.where(draw.random(target.size) < 0.7, target, draw.integers(0, classes, target.size))
    counts = np.maximum(1000 / np.arange(1, classes + 1), 2).astype(int)
    metrics = Metrics(counts)
    start = time.perf_counter()
    metrics.update_predicted(torch.tensor(predicted), torch.tensor(target))
    result = metrics.compute()
    assert time.perf_counter() - start < 30
    assert result["overall"] == close(100 * (predicted == target).mean())
    assert len(result["per_class"]) == classes
    errors = scipy.sparse.coo_matrix(
        ((predicted != target) / 3.0, (predicted, target)), shape=(classes, classes)
    ).tocsr() @ scipy.sparse.diags((counts / counts.sum() + 0.2) ** -0.5)
    assert result["spectral_norm"] == close(scipy.sparse.linalg.svds(errors, k=1)[1][0], rel=1e-6)


def test_two_processes_measure_what_one_does(ranks):
    logits, target = CASES["all classes"]
    wanted = measured(logits, target, COUNTS).compute()
    parts = [(logits[:150], target[:150]), (logits[150:], target[150:])]  # not of one size
    for found in ranks(rank_metrics.measure, parts, COUNTS):
        assert_same(found, wanted, **rounding(logits))


def test_one_process_has_nothing_to_sync():
    metrics = measured(*CASES["all classes"])
    before = metrics.compute()
    metrics.sync()
    assert metrics.compute() == before
