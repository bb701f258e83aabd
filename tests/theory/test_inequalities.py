"""The inequalities under the bound: those that hold, on random matrices and networks, and the one that does not."""

import itertools
import math

import pytest
import torch
from torch import nn

from spectail import functional as SF
from spectail.theory import bound

SEEDS = range(20)


def random_confusion(seed):
    rng = torch.Generator().manual_seed(seed)
    size = int(torch.randint(2, 12, (), generator=rng))
    matrix = torch.rand(size, size, generator=rng, dtype=torch.float64) ** (1 + seed % 4)
    return matrix.fill_diagonal_(0), 0.5 + torch.rand(size, generator=rng, dtype=torch.float64)


def norms(matrix):
    """Largest column sum, spectral norm, Frobenius norm."""
    return float(matrix.abs().sum(0).max()), float(torch.linalg.matrix_norm(matrix, 2)), float(matrix.norm())


@pytest.mark.parametrize("seed", SEEDS)
def test_column_sums_spectral_and_frobenius_norms(seed):
    confusion, weights = random_confusion(seed)
    root = math.sqrt(len(weights))
    for matrix in (confusion, confusion * weights, confusion - confusion.T):  # signs do not matter
        columns, spectral, frobenius = norms(matrix)
        slack = 1 + 1e-12
        assert columns <= root * spectral * slack
        assert spectral <= root * columns * slack
        assert spectral <= frobenius * slack
        assert frobenius <= root * spectral * slack


def test_the_factor_sqrt_k_cannot_be_smaller():
    """A column of equal entries reaches it, but for the zero on the diagonal."""
    for size in (2, 5, 50):
        matrix = torch.zeros(size, size, dtype=torch.float64)
        matrix[1:, 0] = 1 / (size - 1)
        columns, spectral, _ = norms(matrix)
        assert columns == pytest.approx(math.sqrt(size - 1) * spectral)


@pytest.mark.parametrize("seed", SEEDS)
def test_class_errors_are_below_the_weighted_worst_one(seed):
    confusion, weights = random_confusion(seed)
    worst = SF.worst_class_error(confusion, weights)
    errors = confusion.sum(0)
    assert bool((errors <= worst / weights * (1 + 1e-12)).all())
    top = int((weights * errors).argmax())
    assert float(errors[top]) == pytest.approx(float(worst / weights[top]))


def test_it_is_tight_for_the_largest_weighted_error_which_need_not_be_the_worst_class():
    confusion = torch.tensor([[0.0, 0.5], [0.6, 0.0]])
    weights = torch.tensor([1.0, 2.0])
    limits = SF.worst_class_error(confusion, weights) / weights
    assert limits.tolist() == [1.0, 0.5]  # class 0 is the worst, with 0.6


@pytest.mark.parametrize("seed", SEEDS)
def test_the_spectral_norm_of_non_negative_matrices_grows_with_their_entries(seed):
    smaller, weights = random_confusion(seed)
    larger = smaller + torch.rand(smaller.shape, generator=torch.Generator().manual_seed(seed)) * (smaller > 0.3)
    assert norms(smaller * weights)[1] <= norms(larger * weights)[1] * (1 + 1e-12)


def sample(seed, size=6, images=200):
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(size, (images,), generator=rng)
    logits = torch.randn(images, size, generator=rng, dtype=torch.float64)
    logits[torch.arange(images), labels] += 1
    return logits, labels


@pytest.mark.parametrize("seed", SEEDS)
def test_a_margin_only_adds_errors_entry_by_entry(seed):
    logits, labels = sample(seed)
    hard = SF.confusion(logits.argmax(1), labels, 6).double()
    matrices = [hard, *(SF.margin_confusion(logits, labels, gamma) for gamma in (0.01, 0.3, 1.0, 5.0))]
    for less, more in itertools.pairwise(matrices):
        assert bool((less <= more + 1e-7).all())
        assert norms(less)[1] <= norms(more)[1] + 1e-6
    assert float(matrices[-1].sum()) > float(matrices[0].sum())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("gamma", [0.2, 1.0])
def test_column_sums_survive_perturbations_below_a_quarter_of_the_margin(seed, gamma):
    """Both steps of the proof, for column sums: f -> perturbed f at gamma / 2 -> f at gamma."""
    logits, labels = sample(seed)
    rng = torch.Generator().manual_seed(seed + 100)
    moved = logits + 0.999 * gamma / 4 * (2 * torch.rand(logits.shape, generator=rng, dtype=torch.float64) - 1)
    hard = SF.confusion(logits.argmax(1), labels, 6).double().sum(0)
    half = SF.margin_confusion(moved, labels, gamma / 2).sum(0)
    full = SF.margin_confusion(logits, labels, gamma).sum(0)
    assert bool((hard <= half + 1e-6).all())
    assert bool((half <= full + 1e-12).all())


def test_entries_do_not_survive_them():
    """The proof's entrywise claim: the runner-up changes, so the error moves to another row."""
    logits, moved = torch.tensor([[0.0, 1.0, 0.9]]), torch.tensor([[0.0, 0.9, 1.0]])
    label, gamma = torch.tensor([0]), 1.0
    assert float((moved - logits).abs().max()) < gamma / 4
    before, after = SF.confusion(logits.argmax(1), label, 3), SF.margin_confusion(moved, label, gamma / 2)
    assert (float(before[1, 0]), float(after[1, 0])) == (1.0, 0.0)  # 1 <= 0 is what the claim says
    assert float(before[:, 0].sum()) == float(after[:, 0].sum()) == 1.0
    back = SF.margin_confusion(logits, label, gamma)  # the second step, entry by entry, fails too
    assert (float(after[2, 0]), float(back[2, 0])) == (1.0, 0.0)


def test_nor_does_the_spectral_norm_even_on_average_over_gaussian_weights():
    """The matrix claim, with the proof's own distribution: normal noise on a layer, kept where outputs move little."""
    weight = torch.tensor([[0.0, 0.0], [0.0, 0.0], [1.0, 1.0], [0.999, 0.999]], dtype=torch.float64)
    inputs, labels, gamma = torch.eye(2, dtype=torch.float64), torch.tensor([0, 1]), 1.0
    logits = inputs @ weight.T  # both classes are taken for class 2, by a hair before class 3
    rng = torch.Generator().manual_seed(0)
    kept, total = 0, torch.zeros(4, 4, dtype=torch.float64)
    for _ in range(2000):
        moved = inputs @ (weight + 0.08 * torch.randn(weight.shape, generator=rng, dtype=torch.float64)).T
        if float((moved - logits).abs().max()) < gamma / 4:
            kept += 1
            total += SF.margin_confusion(moved, labels, gamma / 2)
    average = total / kept
    hard = SF.confusion(logits.argmax(1), labels, 4).double()
    assert kept > 1500
    assert norms(hard)[1] == pytest.approx(math.sqrt(2))
    assert norms(average)[1] < 1.05  # claimed to be at least as large
    torch.testing.assert_close(average.sum(0), hard.sum(0))


def test_the_bound_is_above_the_true_error_where_it_is_informative():
    """Two classes on a line, each with 2 % of its samples on the wrong side: the true error is known."""
    images, rng = 1_500_000, torch.Generator().manual_seed(0)
    labels = torch.arange(2).repeat_interleave(images)
    flip = torch.rand(2 * images, generator=rng) < 0.02
    features = ((1.0 - 2 * labels) * (1.0 - 2 * flip))[:, None]
    model = nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0], [-1.0]]))
    found = bound(model, features, labels, [images] * 2, gamma=1.9)
    assert found.informative
    assert float(found.margin_errors.max()) == pytest.approx(0.02, rel=0.05)
    assert bool((found.direct >= 0.02).all())
    assert bool((found.direct <= found.per_class).all())
    assert bool((found.per_class < 1).all())
