"""Features are found by what images show: never computed twice, never mixed up."""

from __future__ import annotations

import numpy as np
import pytest

from spectail.data.datasets import load
from spectail.data.feature_set import FeatureCache


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECTAIL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "features"


def feature(digest):
    """What the backbone of these tests makes of an image."""
    return np.array([digest % 97, digest % 89, digest % 83], dtype=np.float32)


class Backbone:
    """Counts what it is asked for."""

    def __init__(self, images):
        self.images, self.asked = np.asarray(images, dtype=np.uint64), []

    def __call__(self, places):
        self.asked += self.images[places].tolist()
        return np.stack([feature(int(image)) for image in self.images[places]])


def rows(images, name="net"):
    backbone = Backbone(images)
    found = FeatureCache(name).rows(backbone.images, backbone)
    assert np.array_equal(found, np.stack([feature(int(image)) for image in images]))
    return backbone.asked


def test_an_image_is_computed_once():
    generator = np.random.default_rng(0)
    whole = generator.integers(0, 2**63, 60, dtype=np.uint64)
    assert rows(whole[:40]) == whole[:40].tolist()  # in stored order
    assert rows(whole[:40]) == []
    assert rows(whole[[30, 3, 17]]) == []  # a subset, in another order
    assert rows(whole[20:]) == whole[40:].tolist()  # only what is new
    assert rows(whole[::-1]) == []


def test_the_same_image_twice_is_one_image():
    assert sorted(rows([5, 9, 5, 5, 2**64 - 1])) == [5, 9, 2**64 - 1]
    assert rows([9, 9, 5]) == []


def test_another_backbone_has_its_own():
    rows([1, 2], "one")
    assert rows([1, 2], "two") == [1, 2]


def test_damaged_files_are_not_trusted(cache):
    rows([1, 2, 3])
    (path,) = cache.glob("net/*.npz")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    assert rows([1, 2, 3]) == [1, 2, 3]
    assert rows([1, 2, 3]) == []  # and healed


def test_a_cache_that_cannot_be_written_costs_time_only(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("SPECTAIL_CACHE", str(tmp_path / "file"))
    assert rows([4, 7]) == [4, 7]
    assert rows([4, 7]) == [4, 7]


@pytest.mark.parametrize("world_size", [1, 2, 3, 9])
def test_ranks_compute_what_is_missing_once_together(world_size):
    """One after the other here, all of which look before the first of them writes."""
    images = np.array([11, 7, 7, 30, 2, 45, 11, 90, 8], dtype=np.uint64)
    rows(images[:2])
    asked, waiting = [], []

    def run(rank):
        backbone, meeting = Backbone(images), []
        cache = FeatureCache("net")

        def meet():
            meeting.append(rank)
            if len(meeting) == 1 and rank + 1 < world_size:
                run(rank + 1)  # the others look while this one waits

        cache.fill(images, backbone, rank, world_size, meet)
        waiting.append(len(meeting))
        asked.append(backbone.asked)

    run(0)
    assert waiting == [2] * world_size
    assert sorted(image for share in asked for image in share) == [2, 8, 30, 45, 90]
    assert max(map(len, asked)) == -(-5 // world_size)
    assert rows(images) == []


def test_digests_follow_the_images():
    """Each split's digests belong to its images, whatever was cut and held out."""
    whole = load("glyphs-lt", num_classes=4, max_per_class=12, imbalance=2)
    digests = {image.tobytes(): int(digest)
               for image, digest in zip(whole.train.images.pixels, whole.contents["train"], strict=True)}  # fmt: skip
    for seed in (0, 1):
        data = load("glyphs-lt", num_classes=4, max_per_class=12, imbalance=2, val_per_class=2, val_seed=seed)
        for name in ("train", "val"):
            pixels = getattr(data, name).images.pixels
            assert [digests[image.tobytes()] for image in pixels] == data.contents[name].tolist()
