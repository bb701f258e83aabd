"""Rectified labels: the worked example, a slow loop, ties, classes of one image, and other edges."""

import math

import pytest
import torch

from spectail.augment.rectify import rectify

Q, DISTANCES, COUNTS = [[0.6, 0.0, 0.0, 0.4]], [[1.0, 2.0, 4.0, 5.0]], [100, 10, 5, 1]


def rectified(q=Q, distances=DISTANCES, counts=COUNTS, omega=1.0, top=2):
    q, distances = (torch.tensor(values, dtype=torch.float64) for values in (q, distances))
    return rectify(q, distances, torch.tensor(counts), omega, top)


def slow(q, distances, counts, omega, top):
    """One image at a time, from the formula."""
    found = []
    for labels, row in zip(q, distances, strict=True):
        near = [1 / max(distance, 1e-6) for distance in row]
        least = sorted(near, reverse=True)[:top][-1]
        near = [value if value >= least else 0.0 for value in near]
        mean = sum(n * share for n, share in zip(counts, labels, strict=True))
        weight = omega * math.log(mean) / sum(math.log(n) for n in counts)
        found.append([weight * s / sum(near) + (1 - weight) * share for s, share in zip(near, labels, strict=True)])
    return found


def near(found, wanted, atol=1e-9):
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64), atol=atol, rtol=0)


@pytest.mark.parametrize(
    ("omega", "wanted"),
    [
        (20 / 255, [0.60252, 0.01259, 0.0, 0.38489]),
        (200 / 255, [0.62518, 0.12588, 0.0, 0.24894]),
        (1.0, [0.63210, 0.16050, 0.0, 0.20740]),
    ],
)
def test_worked_example(omega, wanted):
    near(rectified(omega=omega), [wanted], 1e-5)


@pytest.mark.parametrize("top", [1, 3, 6, 50])
@pytest.mark.parametrize("omega", [0.0, 6 / 5 / 255, 1.0])
def test_it_is_the_slow_loop(top, omega):
    rng = torch.Generator().manual_seed(top)
    counts, a, b = (
        [300, 90, 31, 10, 4, 2],
        torch.randint(6, (40,), generator=rng),
        torch.randint(6, (40,), generator=rng),
    )
    share = torch.rand(40, 1, generator=rng, dtype=torch.float64)
    one_hot = torch.eye(6, dtype=torch.float64)
    q, distances = share * one_hot[a] + (1 - share) * one_hot[b], 5 * torch.rand(40, 6, generator=rng).double()
    found = rectify(q, distances, torch.tensor(counts), omega, top)
    near(found, slow(q.tolist(), distances.tolist(), counts, omega, top))
    near(found.sum(1), [1.0] * 40)
    assert (found >= 0).all()
    if omega == 0:
        near(found, q.tolist(), 0)


def test_strength_of_the_authors_on_cifar_100_lt():
    """About a thousandth: with one class kept, what it receives is the weight itself."""
    counts = [int(500 * 0.01 ** (c / 99)) for c in range(100)]
    distances = [[1.0 if c == 50 else 9.0 for c in range(100)]] * 2
    q = [[float(c == label) for c in range(100)] for label in (0, 99)]
    found = rectified(q, distances, counts, omega=20 / 255, top=1)[:, 50].tolist()
    torch.testing.assert_close(found, [0.00125, 0.00032], atol=6e-6, rtol=0)


def test_ties_at_the_last_place_stay():
    found = rectified(distances=[[1.0, 2.0, 2.0, 5.0]])
    weight = math.log(60.4) / math.log(100 * 10 * 5)
    near(found, [[weight * 0.5 + (1 - weight) * 0.6, weight * 0.25, weight * 0.25, (1 - weight) * 0.4]])
    all_equal = rectified(distances=[[3.0] * 4], top=1)
    near(all_equal, [[weight * 0.25 + (1 - weight) * share for share in Q[0]]])


def test_an_image_of_a_class_of_one_keeps_its_label():
    near(rectified([[0.0, 0.0, 0.0, 1.0]], omega=1.0), [[0.0, 0.0, 0.0, 1.0]], 0)


@pytest.mark.parametrize("q", [[1.0, 0.0, 0.0], [0.25, 0.0, 0.75]])
def test_all_classes_with_one_image(q):
    """log 1 over log 1: nothing is known about sizes, so nothing changes."""
    near(rectified([q], [[3.0, 1.0, 2.0]], [1, 1, 1]), [q], 0)


def test_a_mix_that_lies_on_a_class():
    found = rectified(distances=[[1.0, 0.0, 4.0, 5.0]], top=1)
    weight = math.log(60.4) / math.log(5000)
    near(found, [[0.6 * (1 - weight), weight, 0.0, 0.4 * (1 - weight)]])
    two = rectified(distances=[[1.0, 0.0, 0.0, 5.0]])
    near(two, [[0.6 * (1 - weight), weight / 2, weight / 2, 0.4 * (1 - weight)]])


def test_labels_stay_labels_however_strong():
    near(rectified(omega=50.0), [[2 / 3, 1 / 3, 0.0, 0.0]])


def test_it_takes_no_gradient_and_changes_nothing_in_place():
    q, distances = torch.tensor(Q, requires_grad=True), torch.tensor(DISTANCES, requires_grad=True)
    found = rectify(q, distances, torch.tensor(COUNTS), 1.0, 2)
    assert not found.requires_grad
    assert q.tolist() == torch.tensor(Q).tolist()
    assert distances.tolist() == DISTANCES


def test_the_type_of_the_labels_is_kept():
    for kind in (torch.float32, torch.float64):
        assert rectify(torch.tensor(Q, dtype=kind), torch.tensor(DISTANCES), torch.tensor(COUNTS), 1.0, 2).dtype == kind


def test_a_class_without_images_does_not_count():
    found = rectified([[0.5, 0.5, 0.0]], [[1.0, 2.0, 9.0]], [10, 5, 0], omega=0.1)
    (others,) = slow([[0.5, 0.5]], [[1.0, 2.0]], [10, 5], 0.1, 2)
    near(found, [[*others, 0.0]])
