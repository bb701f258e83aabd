"""The label factor of ReMix: its table, limits and symmetry, and what it does to CIFAR-100-LT on average."""

import math

import pytest
import torch

from spectail.augment.remix import remix_share
from spectail.losses import CrossEntropyLoss
from spectail.targets import MixedTarget

CIFAR = torch.tensor([int(500 * 0.01 ** (c / 99)) for c in range(100)])


def rule(n_i, n_j, lam, kappa=3.0, tau=0.5):
    """The rule of the paper for one pair."""
    if n_i >= kappa * n_j and lam < tau:
        return 0.0
    if kappa * n_i <= n_j and 1 - lam < tau:
        return 1.0
    return lam


def share(n_i, n_j, lam, **options):
    (found,) = remix_share(torch.tensor([n_i, n_j]), torch.tensor([0]), torch.tensor([1]), lam, **options).tolist()
    return found


@pytest.mark.parametrize(
    ("n_i", "n_j", "lam", "wanted"),
    [(500, 100, 0.3, 0), (500, 100, 0.5, 0.5), (500, 100, 0.7, 0.7), (100, 500, 0.7, 1), (100, 500, 0.5, 0.5),
     (100, 500, 0.2, 0.2), (300, 100, 0.49, 0), (299, 100, 0.49, 0.49), (100, 300, 0.8, 1), (100, 299, 0.8, 0.8),
     (5, 5, 0.1, 0.1), (5, 5, 0.9, 0.9), (500, 1, 0.0, 0), (1, 500, 1.0, 1)],
)  # fmt: skip
def test_the_table(n_i, n_j, lam, wanted):
    assert share(n_i, n_j, lam) == pytest.approx(wanted, abs=1e-7)


@pytest.mark.parametrize("kappa", [1.5, 3.0, 10.0])
@pytest.mark.parametrize("tau", [0.0, 0.3, 0.5, 0.8, 1.0])
def test_all_pairs_of_classes_follow_the_rule(kappa, tau):
    counts = torch.tensor([500, 300, 167, 166, 100, 50, 34, 33, 5, 1])
    first, second = torch.cartesian_prod(torch.arange(10), torch.arange(10)).T
    for lam in (0.0, 0.1, 0.3, 0.5, 0.7, 0.875, 1.0):
        found = remix_share(counts, first, second, lam, kappa, tau)
        pairs = zip(counts[first].tolist(), counts[second].tolist(), strict=True)
        wanted = torch.tensor([rule(a, b, lam, kappa, tau) for a, b in pairs])
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("lam", [0.0, 0.123456789, 0.5, 0.9, 1.0])
def test_tau_zero_is_mixup_bit_for_bit(lam):
    first, second = torch.cartesian_prod(torch.arange(100), torch.arange(100)).T
    assert torch.equal(remix_share(CIFAR, first, second, lam, tau=0.0), torch.tensor(lam).expand(10_000))


def test_tau_one_gives_every_pair_to_the_rarer_class():
    for lam in (0.01, 0.5, 0.99):
        assert share(500, 100, lam, tau=1.0) == 0.0
        assert share(100, 500, lam, tau=1.0) == 1.0
        assert share(100, 100, lam, tau=1.0) == pytest.approx(lam)


@pytest.mark.parametrize("lam", [0.0, 0.25, 0.5, 0.625, 1.0])
def test_swapping_the_images_swaps_the_shares(lam):
    first, second = torch.cartesian_prod(torch.arange(0, 100, 7), torch.arange(0, 100, 7)).T
    one, two = remix_share(CIFAR, first, second, lam), remix_share(CIFAR, second, first, 1 - lam)
    assert torch.equal(one, 1 - two)
    logits = torch.randn(len(first), 100, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    loss = CrossEntropyLoss()
    torch.testing.assert_close(
        loss(logits, MixedTarget(first, second, one)), loss(logits, MixedTarget(second, first, two))
    )


def test_a_forced_label_costs_what_the_rare_class_costs():
    logits, counts = torch.tensor([[2.0, 1.0, 0.0, -1.0]]), torch.tensor([500, 50, 50, 5])
    head, tail, loss = torch.tensor([0]), torch.tensor([3]), CrossEntropyLoss()
    for label, wanted in enumerate((0.44019, 1.44019, 2.44019, 3.44019)):
        assert loss(logits, torch.tensor([label])).item() == pytest.approx(wanted, abs=2e-5)
    for tau, wanted in ((0.5, 3.44019), (0.0, 2.54019)):
        target = MixedTarget(head, tail, remix_share(counts, head, tail, 0.3, tau=tau))
        assert loss(logits, target).item() == pytest.approx(wanted, abs=2e-5)


def averages(chances, tau):
    """Forced share of the pairs and label mass of many, medium and few, over all pairs and a fine grid of lam.

    Between 0, 1/2 and 1 the share is linear in lam, so that midpoints give the exact mean over lam uniform.
    """
    first, second = torch.cartesian_prod(torch.arange(100), torch.arange(100)).T
    weight = chances[first] * chances[second]
    forced, mass, points = 0.0, torch.zeros(100, dtype=torch.float64), 20
    for lam in ((k + 0.5) / points for k in range(points)):
        found = remix_share(CIFAR, first, second, lam, tau=tau).double()
        forced += float(weight[(found == 0) | (found == 1)].sum()) / points
        mass.index_add_(0, first, weight * found / points).index_add_(0, second, weight * (1 - found) / points)
    groups = [mass[CIFAR > 100], mass[(CIFAR >= 20) & (CIFAR <= 100)], mass[CIFAR < 20]]
    return forced, [float(group.sum()) for group in groups]


def test_averages_on_cifar_100_lt():
    natural, balanced = CIFAR.double() / CIFAR.sum(), torch.full((100,), 0.01, dtype=torch.float64)
    assert CIFAR.sum() == 10847
    ratio = CIFAR[:, None] / CIFAR
    far = (ratio >= 3) | (ratio <= 1 / 3)
    assert float(natural @ far.double() @ natural) == pytest.approx(0.31986, abs=1e-5)
    assert float(balanced @ far.double() @ balanced) == pytest.approx(0.59140, abs=1e-5)
    forced, mass = averages(natural, 0.5)
    assert forced == pytest.approx(0.15993, abs=1e-5)
    torch.testing.assert_close(mass, [0.78203, 0.18325, 0.03472], atol=1e-5, rtol=0)
    assert averages(balanced, 0.5)[0] == pytest.approx(0.29570, abs=1e-5)
    forced, mass = averages(natural, 0.0)
    assert forced == 0.0
    torch.testing.assert_close(mass, [0.81350, 0.15838, 0.02812], atol=1e-5, rtol=0)
    assert math.fsum(mass) == pytest.approx(1.0)
