import oracle
import pytest
import torch
from all_pairs import all_pairs

from spectail import ClassCounts, MixedTarget
from spectail import functional as SF

FORMS = ("full", "no-gate", "no-softmax", "no-both")
MODES = ("masked", "soft", "dominant", "clean")
O3_LOGITS = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 3.0]])
O3_SOFT = [[0, 0.12723, 0.00100], [0.04936, 0, 0.00681], [0.00805, 0.37766, 0]]
O3_MASKED = [[0, 0.00565, 0.00100], [0, 0, 0], [0.00805, 0.00605, 0]]
O3_HARD = [[0, 0, 0.00199], [0.06582, 0, 0.01361], [0.01073, 0, 0]]


def o3_target(*lam):
    return MixedTarget(torch.tensor([0, 2]), torch.tensor([1, 1]), torch.tensor(lam))


def near(found, wanted, atol=1e-6):
    torch.testing.assert_close(found, torch.as_tensor(wanted).to(found), rtol=0, atol=atol)


@pytest.mark.parametrize(
    ("lam", "mixed", "wanted", "norm"),
    [
        ((0.75, 0.5), "soft", O3_SOFT, 0.39859),
        ((0.75, 0.5), "masked", O3_MASKED, 0.01075),
        ((1.0, 1.0), "masked", O3_HARD, 0.06803),
        ((1.0, 1.0), "soft", O3_HARD, 0.06803),
        ((1.0, 1.0), "clean", O3_HARD, 0.06803),
        ((0.75, 0.5), "dominant", O3_HARD, 0.06803),
        ((0.75, 0.5), "clean", torch.zeros(3, 3), 0.0),
    ],
)
def test_mixed_labels_give_the_numbers_of_oracle_o3(lam, mixed, wanted, norm):
    found = SF.soft_confusion(O3_LOGITS, o3_target(*lam), mixed=mixed)
    near(found, wanted, 2e-5)
    near(torch.linalg.matrix_norm(found, 2), norm, 2e-5)


@pytest.mark.parametrize(("mixed", "norm"), [("soft", 0.43088), ("masked", 0.00984)])
def test_normalised_weights_give_the_numbers_of_oracle_o3(mixed, norm):
    weights = SF.class_weights([80, 15, 5], r0=0.2, normalize=True)
    near(weights, [0.63962, 1.08115, 1.27923], 2e-5)
    found = SF.soft_confusion(O3_LOGITS, o3_target(0.75, 0.5), mixed=mixed)
    near(torch.linalg.matrix_norm(found * weights, 2), norm, 2e-5)


def test_partner_with_all_the_mass_is_the_hard_label():
    found = SF.soft_confusion(O3_LOGITS, o3_target(0.0, 0.0))
    near(found, SF.soft_confusion(O3_LOGITS, torch.tensor([1, 1])))


@pytest.mark.parametrize(
    ("kind", "competitors", "surrogate", "gamma"),
    all_pairs(["hard", "soft", "mixed", "ignored"], ["all", "non-target"], FORMS, [0.0, 1.5]),
)
def test_soft_confusion_is_the_slow_one(kind, competitors, surrogate, gamma):
    logits, target = oracle.one_batch(dtype=torch.float64, kind=kind)
    options = {"gamma": gamma, "competitors": competitors, "surrogate": surrogate}
    found = SF.soft_confusion(logits, target, **options)
    wanted = oracle.soft_confusion(logits, target, **options)
    near(found, wanted, 1e-12)
    assert float(wanted.max()) > 0.01
    assert not found.diagonal().any()


@pytest.mark.parametrize("mixed", MODES)
def test_soft_confusion_of_mixed_labels_is_the_slow_one(mixed):
    logits, target = oracle.one_batch(dtype=torch.float64, kind="mixed")
    near(SF.soft_confusion(logits, target, mixed=mixed), oracle.soft_confusion(logits, target, mixed=mixed), 1e-12)


def test_soft_labels_are_never_masked():
    logits, target = oracle.one_batch(dtype=torch.float64, kind="mixed")
    dense = target.dense(7)
    near(SF.soft_confusion(logits, dense), SF.soft_confusion(logits, target, mixed="soft"), 1e-12)
    assert not torch.allclose(SF.soft_confusion(logits, dense), SF.soft_confusion(logits, target))


def test_one_hot_labels_are_hard_labels():
    logits, target = oracle.one_batch()
    one_hot = torch.nn.functional.one_hot(target, 7).float()
    near(SF.soft_confusion(logits, one_hot), SF.soft_confusion(logits, target))


def test_a_column_of_little_mass_is_damped():
    logits = torch.tensor([[0.0, 1.0]])
    row = torch.sigmoid(torch.tensor(1.0)) * logits.softmax(1)[0, 1]
    near(SF.soft_confusion(logits, torch.tensor([[0.25, 0.75]]))[1, 0], 0.25 * row)


@pytest.mark.parametrize("shift", [0.0, 1000.0])
def test_only_differences_of_logits_count(shift):
    logits, target = oracle.one_batch(dtype=torch.float64)
    near(SF.soft_confusion(logits + shift, target), SF.soft_confusion(logits, target), 1e-12)


@pytest.mark.parametrize("competitors", ["all", "non-target"])
def test_sure_predictions_stay_finite(competitors):
    logits = torch.tensor([[1e4, 0.0, -1e4], [-1e4, 0.0, 1e4]], requires_grad=True)
    found = SF.soft_confusion(logits, torch.tensor([0, 0]), competitors=competitors)
    near(found, [[0, 0, 0], [0, 0, 0], [0.5, 0, 0]])
    found.sum().backward()
    assert torch.isfinite(logits.grad).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_is_computed_in_float32(dtype):
    logits, target = oracle.one_batch(dtype=dtype)
    found = SF.soft_confusion(logits, target)
    assert found.dtype == torch.float32
    near(found, SF.soft_confusion(logits.float(), target), 0)


def test_confusion_by_hand():
    pred, target = torch.tensor([0, 1, 1, 2, 0]), torch.tensor([0, 0, 0, 2, 2])
    near(SF.confusion(pred, target, 4), [[0, 0, 0.5, 0], [2 / 3, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]])


@pytest.mark.parametrize("kind", ["hard", "soft", "mixed", "ignored"])
@pytest.mark.parametrize("mixed", MODES)
def test_confusion_is_the_slow_one(kind, mixed):
    logits, target = oracle.one_batch(kind=kind)
    pred = logits.argmax(1)
    near(SF.confusion(pred, target, 7, mixed=mixed), oracle.hard_confusion(pred, target, 7, mixed))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.int64])
def test_confusion_takes_any_integer(dtype):
    pred, target = torch.tensor([0, 1, 1, 2, 0]), torch.tensor([0, 0, 1, 2, 2])
    near(SF.confusion(pred.to(dtype), target.to(dtype), 3), SF.confusion(pred, target, 3), 0)


def test_margin_confusion_at_zero_is_the_confusion_of_the_prediction():
    logits, target = oracle.one_batch()
    near(SF.margin_confusion(logits, target, 0.0), SF.confusion(logits.argmax(1), target, 7))


@pytest.mark.parametrize(("gamma", "wrong"), [(0.0, 0), (0.5, 0), (0.75, 1), (1.0, 1)])
def test_margin_is_strict(gamma, wrong):
    found = SF.margin_confusion(torch.tensor([[2.0, 0.25, 1.5]]), torch.tensor([0]), gamma)
    near(found, [[0, 0, 0], [0, 0, 0], [wrong, 0, 0]])


def test_margin_confusion_by_hand():
    logits = torch.tensor([[3.0, 1.0, 2.5], [3.0, 2.25, 0.0], [3.0, 0.0, 1.0], [0.0, 1.0, 2.0]])
    found = SF.margin_confusion(logits, torch.tensor([0, 0, 0, 1]), 1.0)
    near(found, [[0, 0, 0], [1 / 3, 0, 0], [1 / 3, 1, 0]])


@pytest.mark.parametrize(
    ("mixed", "wanted"),
    [
        ("soft", [[0, 1, 1], [1, 0, 0], [0, 0, 0]]),
        ("masked", [[0, 2 / 3, 1], [0, 0, 0], [0, 0, 0]]),
        ("dominant", [[0, 0, 1], [1, 0, 0], [0, 0, 0]]),
        ("clean", [[0, 0, 0], [0, 0, 0], [0, 0, 0]]),
    ],
)
def test_margin_confusion_of_mixed_labels(mixed, wanted):
    logits = torch.tensor([[2.0, 1.0, 0.0], [3.0, 1.0, 1.5]])
    near(SF.margin_confusion(logits, o3_target(0.75, 0.5), 2.0, mixed=mixed), wanted)


def test_margin_confusion_leaves_ignored_samples_out():
    logits, target = oracle.one_batch(kind="ignored")
    kept = target != -100
    assert not kept.all()
    near(SF.margin_confusion(logits, target, 0.7), SF.margin_confusion(logits[kept], target[kept], 0.7))


@pytest.mark.parametrize("r0", [0.01, 0.2, 3.0])
@pytest.mark.parametrize("normalize", [False, True])
def test_class_weights_are_the_formula(r0, normalize):
    counts = oracle.long_tail(9)
    wanted = oracle.weights_of(counts, r0, normalize)
    for given in (counts, torch.tensor(counts), ClassCounts(counts)):
        torch.testing.assert_close(SF.class_weights(given, r0, normalize), wanted.float(), rtol=1e-6, atol=0)


def test_uniform_counts_weigh_the_same():
    near(SF.class_weights([7] * 5), [(0.2 + 0.2) ** -0.5] * 5)
    near(SF.class_weights([7] * 5, normalize=True), [1.0] * 5)


def test_an_empty_class_has_the_largest_weight_if_allowed():
    near(SF.class_weights([10, 0], on_empty="ignore"), [1.2**-0.5, 0.2**-0.5])


def test_errors_are_column_sums():
    confusion = torch.tensor([[0.0, 0.25, 0.1], [0.5, 0.0, 0.3], [0.0, 0.25, 0.0]])
    near(SF.class_errors(confusion), [0.5, 0.5, 0.4])
    near(SF.worst_class_error(confusion), 0.5)
    near(SF.worst_class_error(confusion, torch.tensor([1.0, 1.2, 2.0])), 0.8)


def test_worst_class_error_is_at_most_sqrt_k_times_the_spectral_norm():
    logits, target = oracle.one_batch()
    weights = SF.class_weights(oracle.long_tail(7))
    confusion = SF.margin_confusion(logits, target, 0.5)
    bound = 7**0.5 * torch.linalg.matrix_norm(confusion * weights, 2)
    assert 0 < SF.worst_class_error(confusion, weights) <= bound
