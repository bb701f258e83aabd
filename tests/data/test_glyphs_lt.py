"""The embedded set as `load` gives it: its identity is committed, so that everyone trains on the same pixels."""

import hashlib

import numpy as np

from spectail.data import load

IDENTITY = "535794dab1d5a3ff"


def test_the_default_set_is_the_one_that_everyone_has():
    data = load("glyphs-lt")
    assert data.manifest.identity == IDENTITY
    assert (len(data.train), len(data.test), len(data.counts)) == (4311, 4000, 100)
    assert data.counts.tolist()[:3] == [200, 190, 182]
    assert data.counts.tolist()[-1] == 2
    assert set(data.test.counts.tolist()) == {40}
    again = load("glyphs-lt")  # from the cache
    assert again.manifest.identity == IDENTITY
    assert np.array_equal(again.train.pixels, data.train.pixels)
    # the test split keeps the order of drawing, so its bytes are those that `render` gives
    digest = hashlib.sha256(data.test.pixels.tobytes()).hexdigest()
    assert digest == "3302544d501e6493e92766946d29a3454f2e170545e9a6d771a6db0bb2892d1f"


def test_smaller_sets_and_other_seeds():
    few = load("glyphs-lt", num_classes=5, max_per_class=10, imbalance=5)
    assert few.counts.tolist() == [10, 6, 4, 2, 2]
    assert few.train.names[0] == "O"
    other = load("glyphs-lt", num_classes=5, max_per_class=10, imbalance=5, data_seed=1)
    assert other.manifest.identity != few.manifest.identity
    given = load("glyphs-lt", num_classes=3, counts=(4, 250, 2))
    assert given.counts.tolist() == [4, 250, 2]
    assert few.train.images.name(0).startswith("train O ")
