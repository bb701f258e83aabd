"""Boxes, pasting, mixup, and the random numbers of a step: worked examples, exact expectations, bad input."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.stats import chisquare, kstest

from spectail.augment.mixing import Box, Draws, cut_box, mixup, paste

SIZES = [(32, 32), (20, 41), (7, 5), (1, 9)]
CASES = [(lam, size) for size in SIZES for lam in (0.0, 0.013, 0.3, 0.77, 0.9999, 1.0)]


def corners(box):
    return box.x0, box.x1, box.y0, box.y1


# the box


@pytest.mark.parametrize(
    ("lam", "size", "cx", "cy", "wanted", "share"),
    [
        (0.36, 32, 16, 10, (4, 28, 0, 22), 0.484375),
        (0.36, 32, 0, 31, (0, 12, 19, 32), 0.84765625),
        (0.0, 32, 16, 16, (0, 32, 0, 32), 0.0),
        (0.0, 32, 0, 0, (0, 16, 0, 16), 0.75),
        (0.5, 224, 112, 112, (33, 191, 33, 191), 1 - 158**2 / 224**2),
    ],
)
def test_worked_examples(lam, size, cx, cy, wanted, share):
    box = cut_box(lam, size, size, cx, cy)
    assert corners(box) == wanted
    assert box.share == share


@pytest.mark.parametrize(("lam", "cx", "cy"), [(0.999, 5, 5), (1.0, 0, 0), (1.0, 31, 31)])
def test_an_empty_box_leaves_everything(lam, cx, cy):
    box = cut_box(lam, 32, 32, cx, cy)
    assert box.share == 1.0
    images = torch.rand(2, 3, 32, 32)
    assert torch.equal(paste(images, torch.rand(2, 3, 32, 32), box), images)


def test_the_whole_image():
    box = cut_box(0.0, 6, 8, cx=4, cy=3)
    other = torch.rand(2, 3, 6, 8)
    assert torch.equal(paste(torch.rand(2, 3, 6, 8), other, box), other)


def test_odd_sides_lose_a_pixel():
    """int(side * r) and then // 2: the box of a whole 5 x 7 image is 4 x 6."""
    assert corners(cut_box(0.0, 5, 7, cx=3, cy=2)) == (0, 6, 0, 4)


@pytest.mark.parametrize(
    ("height", "width", "cx", "cy", "wanted", "share"),
    [
        (20, 40, 30, 5, (14, 40, 0, 13), 0.5775),
        (40, 20, 5, 30, (0, 13, 14, 40), 0.5775),  # turned round
        (20, 40, 0, 19, (0, 16, 11, 20), 0.82),
    ],
)
def test_width_and_height_are_not_confused(height, width, cx, cy, wanted, share):
    box = cut_box(0.36, height, width, cx, cy)  # sides of 0.8: halves of 16 and 8 pixels
    assert corners(box) == wanted
    assert box.share == pytest.approx(share, abs=1e-15)


def test_expectation_over_all_boxes_is_exact():
    """lam uniform: k = int(32 r) has probability (2k + 1) / 1024; clipping leaves more of the background."""
    mean = square = empty = 0.0
    for k in range(32):
        lam = 1 - ((k + 0.5) / 32) ** 2
        shares = np.array([cut_box(lam, 32, 32, cx, cy).share for cx in range(32) for cy in range(32)])
        chance = (2 * k + 1) / 1024
        mean, square = mean + chance * shares.mean(), square + chance * (shares**2).mean()
        empty += chance * (shares == 1).mean()
    assert mean == pytest.approx(0.70075, abs=5e-6)
    assert math.sqrt(square - mean**2) == pytest.approx(0.183, abs=5e-4)
    assert empty == 4 / 1024


@pytest.mark.parametrize(
    ("lam", "cx", "cy", "words"),
    [(-0.1, 0, 0, "lam must lie in"), (1.1, 0, 0, "lam must lie in"), (math.nan, 0, 0, "lam must lie in"),
     (0.5, 8, 0, "centre must lie in the image of 8 x 4"), (0.5, 0, 4, "centre"), (0.5, -1, 0, "centre")],
)  # fmt: skip
def test_boxes_that_cannot_be(lam, cx, cy, words):
    with pytest.raises(ValueError, match=words):
        cut_box(lam, 4, 8, cx, cy)


# pasting


@pytest.mark.parametrize(("lam", "size"), CASES)
def test_the_share_is_the_part_that_did_not_change(lam, size):
    height, width = size
    places = itertools.product(range(0, width, 3), range(0, height, 3))
    for cx, cy in places:
        box = cut_box(lam, height, width, cx, cy)
        mixed = paste(torch.zeros(1, 1, height, width), torch.ones(1, 1, height, width), box)
        assert mixed.mean(dtype=torch.float64).item() == pytest.approx(1 - box.share, abs=1e-12)


def test_pixels_come_from_the_same_place():
    """Every pixel knows its row and column; the sign says which image it is from."""
    rows, columns = torch.meshgrid(torch.arange(1.0, 6), torch.arange(1.0, 10), indexing="ij")
    image = (10 * rows + columns).expand(2, 3, 5, 9)
    box = Box(2, 7, 1, 4, 5, 9)
    mixed = paste(image, -image, box)
    torch.testing.assert_close(mixed.abs(), image.contiguous(), rtol=0, atol=0)
    for row, column in itertools.product(range(5), range(9)):
        inside = 2 <= column < 7 and 1 <= row < 4
        assert (mixed[:, :, row, column] < 0).all() == inside
    assert (mixed < 0).float().mean().item() == pytest.approx(1 - box.share)


def test_each_image_gets_its_own_partner():
    background, foreground = torch.zeros(3, 1, 4, 4), torch.arange(1.0, 4).view(3, 1, 1, 1).expand(3, 1, 4, 4)
    mixed = paste(background, foreground, Box(0, 2, 0, 2, 4, 4))
    assert mixed[:, 0, 1, 1].tolist() == [1.0, 2.0, 3.0]
    assert mixed[:, 0, 2, 2].tolist() == [0.0, 0.0, 0.0]


def test_the_images_themselves_are_not_touched():
    background, foreground = torch.rand(4, 3, 8, 8), torch.rand(4, 3, 8, 8)
    before = background.clone(), foreground.clone()
    mixed = paste(background, foreground, Box(1, 5, 2, 8, 8, 8))
    assert torch.equal(background, before[0])
    assert torch.equal(foreground, before[1])
    mixed.zero_()
    assert torch.equal(background, before[0])
    same = paste(background, background.flip(0), Box(0, 0, 0, 0, 8, 8))
    assert same.data_ptr() != background.data_ptr()


@pytest.mark.parametrize(
    ("background", "foreground", "words"),
    [
        ((4, 7), (4, 7), r"needs images \(N, C, H, W\); the background has shape \(4, 7\)"),
        ((4, 3, 8, 8), (4, 7), "the foreground has shape"),
        ((4, 3, 8, 6), (4, 3, 8, 6), "drawn for images of 8 x 8; the background is 6 x 8"),
        ((4, 3, 8, 8), (4, 3, 9, 8), "the foreground is 8 x 9"),
        ((4, 3, 8, 8), (3, 3, 8, 8), "as many foregrounds as backgrounds are needed; got 3 and 4"),
        ((4, 3, 8, 8), (1, 3, 8, 8), "got 1 and 4"),  # it would spread over the batch without a word
    ],
)
def test_what_cannot_be_pasted(background, foreground, words):
    with pytest.raises(ValueError, match=words):
        paste(torch.zeros(background), torch.zeros(foreground), cut_box(0.5, 8, 8, 4, 4))


# mixup


@pytest.mark.parametrize("lam", [0.0, 0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("shape", [(3, 2, 4, 5), (3, 7)])
def test_mixup_is_the_formula(lam, shape):
    images, partners = torch.randn(2, *shape, dtype=torch.float64)
    torch.testing.assert_close(mixup(images, partners, lam), lam * images + (1 - lam) * partners, rtol=0, atol=1e-15)


def test_ends_of_mixup_are_exact():
    images, partners = torch.randn(2, 5, 3) * 1e6
    assert torch.equal(mixup(images, partners, 1.0), images)
    assert torch.equal(mixup(images, partners, 0.0), partners)
    assert torch.equal(mixup(images, images, 0.3), images)


# random numbers


def steps(rank, sizes, seed=4):
    """What the ranks must agree on, over several steps with batches of these sizes, and each rank's partners."""
    generator = torch.Generator().manual_seed(seed)
    agreed, own = [], []
    for size in sizes:
        draws = Draws(generator, rank)
        if rank == 1:  # when a rank asks for its own numbers must not matter
            own.append(draws.partners(size, torch.device("cpu")).tolist())
        lam = draws.lam(1.0)
        agreed.append((lam, draws.chance(0.5), draws.box(lam, 32, 24)))
        if rank != 1:
            own.append(draws.partners(size, torch.device("cpu")).tolist())
    return agreed, own, generator.get_state()


def test_ranks_agree_whatever_their_batches_hold():
    first, first_own, one = steps(0, [16, 16, 5])
    second, second_own, two = steps(1, [16, 15, 4])
    assert first == second
    assert torch.equal(one, two)  # and so does the rest of the run
    assert first_own[0] != second_own[0]
    for own, sizes in ((first_own, [16, 16, 5]), (second_own, [16, 15, 4])):
        assert [sorted(places) for places in own] == [list(range(size)) for size in sizes]


def test_every_step_and_every_seed_has_its_own_numbers():
    found = [lam for seed in range(5) for lam, _, _ in steps(0, [3] * 10, seed)[0]]
    assert len(set(found)) == 50


def test_the_same_seed_gives_the_same_numbers():
    assert steps(0, [8, 8])[:2] == steps(0, [8, 8])[:2]


@pytest.mark.parametrize("alpha", [0.4, 1.0, 3.0])
def test_shares_follow_the_beta_distribution(alpha):
    draws = Draws(torch.Generator().manual_seed(0))
    found = [draws.lam(alpha) for _ in range(4000)]
    assert kstest(found, "beta", args=(alpha, alpha)).pvalue > 1e-3


def test_first_numbers_of_many_steps_are_uniform_too():
    """Each step has a generator of its own: seeds must not show."""
    generator = torch.Generator().manual_seed(1)
    assert kstest([Draws(generator).lam(1.0) for _ in range(4000)], "uniform").pvalue > 1e-3


def test_centres_are_uniform_in_both_directions():
    draws = Draws(torch.Generator().manual_seed(2))
    boxes = [draws.box(0.75, 6, 10) for _ in range(6000)]  # half sides of 2 and 1 pixels: the centre can be read off
    columns = np.array([box.x1 - 2 if box.x1 < 10 else box.x0 + 2 for box in boxes])
    rows = np.array([box.y1 - 1 if box.y1 < 6 else box.y0 + 1 for box in boxes])
    for found, size in ((columns, 10), (rows, 6)):
        assert chisquare(np.bincount(found, minlength=size)).pvalue > 1e-3


@pytest.mark.parametrize("probability", [0.0, 0.3, 1.0])
def test_chance(probability):
    draws = Draws(torch.Generator().manual_seed(3))
    found = np.mean([draws.chance(probability) for _ in range(5000)])
    assert found == pytest.approx(probability, abs=4 * math.sqrt(probability * (1 - probability) / 5000))


def test_partners_are_a_random_permutation():
    draws = Draws(torch.Generator().manual_seed(5))
    found = torch.stack([draws.partners(4, torch.device("cpu")) for _ in range(4000)])
    assert found.dtype == torch.int64
    for place in range(4):
        assert chisquare(found[:, place].bincount(minlength=4)).pvalue > 1e-3
    assert draws.partners(1, torch.device("cpu")).tolist() == [0]
