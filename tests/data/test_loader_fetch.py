"""Loader.fetch gives any images of the training set beside the stream; images=False leaves the images out."""

import itertools
import random

import numpy as np
import pytest
import torch
from PIL import Image

from spectail.data.decoding import BrokenImage
from spectail.data.feature_set import FeatureSet
from spectail.data.image_set import ImageSet
from spectail.data.images import ArrayImages, FileImages, Texts
from spectail.data.loader import Loader
from spectail.data.samplers import LongTailSampler
from spectail.data.transforms import preset

SIZE = 21
PIXELS = np.random.default_rng(0).integers(0, 256, (SIZE, 32, 32, 3), dtype=np.uint8)
LABELS = np.random.default_rng(1).integers(0, 3, SIZE)
ROWS = torch.tensor([20, 3, 3, 0, 7, 11])
PRESETS = {"memory": preset("cifar"), "each": preset("cifar-strong"), "files": preset("cifar-strong"), "features": None}
WAYS = pytest.mark.parametrize("way", ["memory", "each", "features"])
DRAWN = pytest.mark.parametrize("way", ["memory", "each"])  # with random augmentation


@pytest.fixture
def make(tmp_path):
    def made(way="memory", **options):
        if way == "features":
            data = FeatureSet(torch.from_numpy(PIXELS[:, 0, 0].astype(np.float32)), LABELS, "abc")
        elif way == "files":
            for index, pixels in enumerate(PIXELS):
                Image.fromarray(pixels).save(tmp_path / f"{index}.png")
            data = ImageSet(FileImages(tmp_path, Texts.pack(f"{i}.png" for i in range(SIZE))), LABELS, "abc")
        else:
            data = ImageSet(ArrayImages(PIXELS), LABELS, "abc")
        return Loader(data, PRESETS[way], sampler=LongTailSampler(LABELS, seed=4), **{"batch_size": 6, **options})

    return made


@WAYS
def test_labels_and_indices_are_those_asked_for(make, way):
    batch = make(way).fetch(ROWS)
    assert torch.equal(batch.indices, ROWS)
    assert batch.labels.tolist() == LABELS[ROWS].tolist()
    assert len(batch.images) == len(ROWS)


def test_features_come_as_they_are(make):
    loader = make("features")
    assert torch.equal(loader.fetch(ROWS).images, torch.from_numpy(PIXELS[ROWS.numpy(), 0, 0].astype(np.float32)))


def crops(row, mean, std):
    """All that a random crop with a frame of four and a mirror can make of an image, by hand."""
    scaled = (PIXELS[row] / 255 - np.array(mean)) / np.array(std)
    black = (0 - np.array(mean)) / np.array(std)
    framed = np.tile(black, (40, 40, 1))
    framed[4:36, 4:36] = scaled
    found = []
    for top, left in itertools.product(range(9), range(9)):
        crop = framed[top : top + 32, left : left + 32].transpose(2, 0, 1)
        found += [crop, crop[:, :, ::-1]]
    return np.stack(found)


def test_images_are_augmented_as_in_training(make):
    """In memory with the usual CIFAR recipe: a crop of the framed image, mirrored or not, and not always the same."""
    transform = PRESETS["memory"]
    batch = make("memory").fetch(ROWS)
    places = []
    for row, image in zip(ROWS.tolist(), batch.images.numpy(), strict=True):
        distance = abs(crops(row, transform.mean, transform.std) - image).max((1, 2, 3))
        assert distance.min() < 1e-4
        places.append(int(distance.argmin()))
    assert len(set(places)) > 2
    assert places[1] != places[2]  # the same image twice is augmented twice


@DRAWN
def test_the_same_place_gives_the_same_images_and_another_place_others(make, way):
    first, second = make(way), make(way)
    assert torch.equal(first.fetch(ROWS).images, second.fetch(ROWS).images)
    stream = iter(first)
    next(stream)
    moved = first.fetch(ROWS).images
    assert not torch.equal(moved, second.fetch(ROWS).images)
    second.set_epoch(1)
    assert not torch.equal(second.fetch(ROWS).images, make(way).fetch(ROWS).images)
    assert not torch.equal(make(way, seed=1).fetch(ROWS).images, make(way).fetch(ROWS).images)
    third = make(way)
    third.load_state_dict(first.state_dict())  # a resumed run fetches what the uninterrupted one would
    assert torch.equal(third.fetch(ROWS).images, moved)


@WAYS
def test_the_stream_does_not_notice(make, way):
    plain, disturbed = make(way), make(way)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # noqa: NPY002
    state = disturbed.state_dict()
    disturbed.fetch(ROWS)
    assert disturbed.state_dict() == state
    for wanted, found in zip(plain, disturbed, strict=True):
        disturbed.fetch(ROWS)
        assert torch.equal(wanted.images, found.images)
        assert torch.equal(wanted.indices, found.indices)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    np.testing.assert_array_equal(np.random.get_state()[1], before[2])  # noqa: NPY002


@DRAWN
def test_fetched_images_are_not_augmented_like_the_stream(make, way):
    """The same rows at the same place: fetched, they have draws of their own."""
    loader = make(way)
    batch = next(iter(loader))
    assert not torch.equal(loader.fetch(batch.indices).images, batch.images)


@pytest.mark.parametrize("way", ["memory", "each", "files", "features"])
@pytest.mark.parametrize("world", [2, 3])
def test_ranks_fetch_together_what_one_process_would(make, way, world):
    alone = make(way, batch_size=6)
    ranks = [make(way, batch_size=6 // world, rank=rank, world_size=world) for rank in range(world)]
    streams = [iter(loader) for loader in (alone, *ranks)]
    for _ in range(2):
        for stream in streams:
            next(stream)
        wanted = alone.fetch(ROWS)
        parts = [loader.fetch(ROWS[rank::world]) for rank, loader in enumerate(ranks)]
        for rank, part in enumerate(parts):
            assert torch.equal(part.labels, wanted.labels[rank::world])
            assert torch.equal(part.images, wanted.images[rank::world])


def test_draws_of_successive_steps_do_not_repeat(make):
    """Images that are transformed one by one, a fetch for each even batch: no two of an epoch share a draw."""
    loader, rows = make("each", drop_last=True), torch.zeros(6, dtype=torch.int64)
    found = []
    for _ in loader:
        found += list(loader.fetch(rows).images)
    for one, other in itertools.combinations(found, 2):
        assert not torch.equal(one, other)


def test_a_broken_file_is_named(make, tmp_path):
    loader = make("files")
    (tmp_path / "7.png").write_bytes(b"no image")
    loader.fetch(torch.tensor([0, 1]))
    with pytest.raises(BrokenImage, match="7.png"):
        loader.fetch(ROWS)


# without images


@WAYS
@pytest.mark.parametrize("rank", [0, 1])
def test_without_images_the_order_is_the_same(make, way, rank):
    options = {"batch_size": 4, "rank": rank, "world_size": 2}
    full, bare = make(way, **options), make(way, images=False, **options)
    for epoch in range(2):
        full.set_epoch(epoch)
        bare.set_epoch(epoch)
        for wanted, found in zip(full, bare, strict=True):
            assert found.images is None
            assert torch.equal(found.labels, wanted.labels)
            assert torch.equal(found.indices, wanted.indices)
            assert bare.handed == full.handed
    assert bare.state_dict() == full.state_dict()


def test_without_images_no_file_is_read(make, tmp_path):
    loader = make("files", images=False)
    for path in tmp_path.glob("*.png"):
        path.unlink()
    assert torch.cat([batch.indices for batch in loader]).unique().numel() == SIZE


def test_without_images_resumes(make):
    first, second = make(images=False), make(images=False)
    stream = iter(first)
    taken = [next(stream).indices, next(stream).indices]
    second.load_state_dict(first.state_dict())
    rest = [batch.indices for batch in second]
    assert sorted(torch.cat(taken + rest).tolist()) == list(range(SIZE))
