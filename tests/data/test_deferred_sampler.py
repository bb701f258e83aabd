"""DeferredSampler: one order before the switch, the other from it on, through loaders, ranks and interruptions too."""

import itertools

import numpy as np
import pytest
import torch

from spectail.data.feature_set import FeatureSet
from spectail.data.loader import Loader
from spectail.data.samplers import DeferredSampler, LongTailSampler

LABELS = [0] * 14 + [1] * 5 + [2] * 2


def deferred(switch=2, seed=0, then="class-balanced", first="instance"):
    return DeferredSampler(LongTailSampler(LABELS, first, seed=seed), LongTailSampler(LABELS, then, seed=seed), switch)


def loader(switch=2, batch_size=4, **options):
    features = torch.arange(len(LABELS)).float()[:, None]
    sampler = options.pop("sampler", None) or deferred(switch)
    return Loader(FeatureSet(features, np.array(LABELS), "abc"), batch_size=batch_size, sampler=sampler, **options)


@pytest.mark.parametrize("switch", [0, 1, 3])
def test_which_sampler_follows_from_the_epoch_alone(switch):
    both = deferred(switch)
    plain, balanced = LongTailSampler(LABELS), LongTailSampler(LABELS, "class-balanced")
    for epoch in (4, 0, 2, 1, 3, 0):  # in any order
        wanted = plain if epoch < switch else balanced
        np.testing.assert_array_equal(both.order(epoch), wanted.order(epoch))


def test_first_every_image_once_then_classes_equally_often():
    both = deferred(3)
    for epoch in range(3):
        assert sorted(both.order(epoch)) == list(range(len(LABELS)))
    late = np.concatenate([both.order(epoch) for epoch in range(3, 203)])
    counts = np.bincount(np.array(LABELS)[late])
    expected = len(late) / 3
    assert ((counts - expected) ** 2 / expected).sum() < 13.8  # chi-square, 2 degrees: 0.1 %


def test_different_lengths_are_refused():
    with pytest.raises(ValueError, match="one length; got 21 and 10"):
        DeferredSampler(LongTailSampler(LABELS), LongTailSampler(LABELS, "reversed", length=10), 1)


def test_a_loader_follows_the_switch():
    one = loader(switch=1)
    for epoch in range(3):
        one.set_epoch(epoch)
        rows = torch.cat([batch.indices for batch in one])
        np.testing.assert_array_equal(rows, deferred(1).order(epoch))


def test_two_ranks_share_the_batches_of_one():
    alone, ranks = loader(1, 4), [loader(1, 2, rank=rank, world_size=2) for rank in range(2)]
    for epoch in range(2):
        for one in (alone, *ranks):
            one.set_epoch(epoch)
        for batch, *parts in zip(alone, *ranks, strict=False):
            joined = list(itertools.chain(*itertools.zip_longest(*(part.indices.tolist() for part in parts))))
            assert [row for row in joined if row is not None] == batch.indices.tolist()


def test_an_epoch_cut_short_goes_on_where_it_stopped():
    for epoch in (0, 1):  # on both sides of the switch
        first, second = loader(1), loader(1)
        first.set_epoch(epoch)
        taken = [batch.indices for batch in itertools.islice(iter(first), 2)]
        second.load_state_dict(first.state_dict())
        rest = [batch.indices for batch in second]
        np.testing.assert_array_equal(torch.cat(taken + rest), deferred(1).order(epoch))


@pytest.mark.parametrize(
    "other",
    [{"switch": 3}, {"seed": 1}, {"then": "square-root"}, {"first": "square-root"}],
    ids=lambda case: next(iter(case)),
)
def test_a_state_of_another_order_is_refused(other):
    state = loader(sampler=deferred()).state_dict()
    with pytest.raises(ValueError, match="another order"):
        loader(sampler=deferred(**other)).load_state_dict(state)
    with pytest.raises(ValueError, match="another order"):
        loader(sampler=LongTailSampler(LABELS)).load_state_dict(state)
