"""The whole-batch path against torchvision, image by image, and the promises it makes about memory and randomness."""

import pickle
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import torch

from spectail._utils import torchvision_ops  # noqa: F401
from spectail.data import batch_transforms
from spectail.data.batch_transforms import BatchTransform, Draws

from torchvision.transforms.v2 import functional as TF  # isort: skip

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
PLAIN = BatchTransform(size=32, pad=4, flip=True, mean=MEAN, std=STD)


@pytest.fixture(scope="module")
def pixels():
    """Smooth random images."""
    coarse = np.random.default_rng(0).random((60, 3, 5, 5))
    fine = torch.nn.functional.interpolate(torch.from_numpy(coarse), (32, 32), mode="bicubic").clamp(0, 1)
    return (fine * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy().copy()


def through_tensors(transform, stored, rows, draws):
    """What runs on a GPU, run on the CPU."""
    with mock.patch.object(batch_transforms.waits, "reads_are_free", return_value=False):
        return transform(stored, rows, draws)


def one_by_one(pixels, rows, draws, transform):
    """The same recipe by torchvision's functions on one image at a time."""
    out = []
    for i, row in enumerate(rows):
        image = torch.from_numpy(pixels[row]).permute(2, 0, 1)
        image = TF.pad(image, [transform.pad] * 4)
        image = TF.crop(image, int(draws.dy[i]), int(draws.dx[i]), transform.size, transform.size)
        if draws.flip is not None and draws.flip[i]:
            image = TF.horizontal_flip(image)
        image = TF.to_dtype(image, torch.float32, scale=True)
        out.append(TF.normalize(image, transform.mean, transform.std))
    return torch.stack(out)


@pytest.mark.parametrize("transform", [PLAIN, replace(PLAIN, flip=False, pad=2)])
@pytest.mark.parametrize("path", [BatchTransform.__call__, through_tensors])
def test_equals_torchvision_image_by_image(pixels, transform, path):
    rng = np.random.default_rng(1)
    rows = rng.permutation(len(pixels))[:40]
    draws = transform.draws(40, rng)
    batch = path(transform, transform.prepare(pixels), rows, draws)
    assert batch.shape == (40, 3, 32, 32)
    assert batch.dtype == torch.float32
    assert batch.is_contiguous()
    torch.testing.assert_close(batch, one_by_one(pixels, rows, draws, transform), rtol=0, atol=1e-6)


def test_without_draws_it_is_the_test_transform(pixels):
    still = Draws(dy=np.full(3, 4), dx=np.full(3, 4))
    expected = one_by_one(pixels, [5, 0, 5], still, PLAIN)
    for transform in (PLAIN, BatchTransform(size=32, mean=MEAN, std=STD)):
        for path in (BatchTransform.__call__, through_tensors):
            batch = path(transform, transform.prepare(pixels), [5, 0, 5], None)
            torch.testing.assert_close(batch, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("rows", [[1, 2], (1, 2), np.array([1, 2]), torch.tensor([1, 2]), np.array([1, 2], np.int32)])
def test_any_list_of_indices(pixels, rows):
    stored = PLAIN.prepare(torch.from_numpy(pixels))
    assert torch.equal(PLAIN(stored, rows), PLAIN(stored, torch.tensor([1, 2])))


@pytest.mark.parametrize("path", [BatchTransform.__call__, through_tensors])
def test_arrays_may_be_read_only_and_flips_whole_numbers(pixels, path):
    """Memory-mapped data are read-only, and torch warns about such arrays."""
    frozen, rows, draws = pixels.copy(), np.arange(8), PLAIN.draws(8, np.random.default_rng(0))
    expected = PLAIN(PLAIN.prepare(pixels), rows, draws)
    draws = replace(draws, flip=draws.flip.astype(np.int64))
    for array in (frozen, rows, draws.dy, draws.dx, draws.flip):
        array.setflags(write=False)
    stored = PLAIN.prepare(frozen)
    assert torch.equal(path(PLAIN, stored, rows if path is not through_tensors else list(rows), draws), expected)


def test_a_constant_image_is_normalised():
    expected = torch.tensor([(200 / 255 - mean) / std for mean, std in zip(MEAN, STD, strict=True)]).view(1, 3, 1, 1)
    transform = replace(PLAIN, pad=0)
    stored = transform.prepare(np.full((1, 32, 32, 3), 200, dtype=np.uint8))
    batch = transform(stored, [0] * 8, transform.draws(8, np.random.default_rng(0)))
    torch.testing.assert_close(batch, expected.expand_as(batch), atol=1e-6, rtol=0)


def test_draws_are_uniform():
    draws = PLAIN.draws(90_000, np.random.default_rng(3))
    cells = np.bincount(draws.dy * 9 + draws.dx, minlength=81)
    assert len(cells) == 81
    assert ((cells - 90_000 / 81) ** 2 / (90_000 / 81)).sum() < 124.8  # 99.9 % of chi-square with 80 degrees
    assert abs(draws.flip.mean() - 0.5) < 0.006


def test_a_recipe_draws_only_what_it_uses():
    draws = BatchTransform(size=32, mean=MEAN, std=STD).draws(5, np.random.default_rng(0))
    assert (draws.dy.tolist(), draws.dx.tolist()) == ([0] * 5, [0] * 5)
    assert draws.flip is None


def test_shares_of_ranks_make_up_the_global_batch(pixels):
    stored, rows = PLAIN.prepare(pixels), np.arange(20)
    draws = PLAIN.draws(20, np.random.default_rng(4))
    whole = PLAIN(stored, rows, draws)
    for rank in range(3):
        assert len(draws[rank::3]) == len(rows[rank::3])
        assert torch.equal(PLAIN(stored, rows[rank::3], draws[rank::3]), whole[rank::3])


@pytest.mark.parametrize("path", [BatchTransform.__call__, through_tensors])
def test_one_thread_or_two_make_the_same_batch(pixels, path):
    stored, rows = PLAIN.prepare(pixels), np.arange(60)
    draws = PLAIN.draws(60, np.random.default_rng(5))
    batches, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            batches.append(path(PLAIN, stored, rows, draws))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*batches)


def test_the_generator_repeats(pixels):
    stored = PLAIN.prepare(pixels)
    first, again, other = (PLAIN(stored, range(30), PLAIN.draws(30, np.random.default_rng(seed))) for seed in (7, 7, 8))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_batches_that_are_held_never_change(pixels):
    transform = PLAIN
    stored, rng = transform.prepare(pixels), np.random.default_rng(9)
    untouched = stored.clone()
    held, copies = [], []
    for step in range(40):
        draws = transform.draws(16, rng) if step % 4 else None
        held.append(transform(stored, rng.integers(0, 60, 16), draws))
        copies.append(held[-1].clone())
        if step % 3 == 0:
            held[-1].add_(1)  # and what a caller does to a batch reaches neither the images nor another batch
            copies[-1].add_(1)
    assert all(torch.equal(batch, copy) for batch, copy in zip(held, copies, strict=True))
    assert torch.equal(stored, untouched)
    assert len({batch.untyped_storage().data_ptr() for batch in held}) == 40


def test_no_wait_for_the_device():
    """A meta tensor has no values: whatever looked at one would fail."""
    stored = PLAIN.prepare(np.zeros((4, 32, 32, 3), np.uint8)).to("meta")
    for draws in (None, PLAIN.draws(6, np.random.default_rng(0))):
        batch = PLAIN(stored, [0, 1, 2, 3, 0, 1], draws)
        assert (batch.shape, batch.dtype, batch.device.type) == ((6, 3, 32, 32), torch.float32, "meta")


def test_it_pickles(pixels):
    transform = pickle.loads(pickle.dumps(PLAIN))
    draws = pickle.loads(pickle.dumps(PLAIN.draws(9, np.random.default_rng(0))))
    assert transform == PLAIN
    stored = PLAIN.prepare(pixels)
    assert torch.equal(transform(stored, range(9), draws), PLAIN(stored, range(9), draws))


def test_bad_input(pixels):
    stored = PLAIN.prepare(pixels)
    with pytest.raises(ValueError, match=r"pixels must be uint8 of shape \(N, 32, 32, 3\); got float64"):
        PLAIN.prepare(pixels / 255)
    with pytest.raises(ValueError, match=r"got uint8 of shape \(60, 3, 32, 32\)"):
        PLAIN.prepare(pixels.transpose(0, 3, 1, 2).copy())
    with pytest.raises(ValueError, match="images are 32 x 32, this transform is for 64 x 64; resize them"):
        replace(PLAIN, size=64).prepare(pixels)
    with pytest.raises(ValueError, match=r"stored must come from prepare\(\) of a transform with size=32 and pad=2"):
        replace(PLAIN, pad=2)(stored, [0])
    with pytest.raises(ValueError, match="draws are for 3 images, but there are 2 indices"):
        PLAIN(stored, [0, 1], PLAIN.draws(3, np.random.default_rng(0)))
    with pytest.raises(ValueError, match="indices must be a flat list of whole numbers"):
        PLAIN(stored, [0.0, 1.0])
    with pytest.raises(IndexError):
        PLAIN(stored, [60])
    for change, message in [
        ({"size": 0}, "size must be at least 1"),
        ({"pad": -1}, "pad=-1"),
        ({"std": (1, 0, 1)}, "std must be positive"),
        ({"mean": (0.5,)}, "mean must be three numbers"),
    ]:
        with pytest.raises(ValueError, match=message):
            replace(PLAIN, **change)
