"""The next image: drawn with the probability that is promised, once per rank, and the same after an interruption."""

import itertools
import json
import time
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from all_pairs import all_pairs
from torch.utils.data import DataLoader, Dataset

from spectail.data.samplers import SAMPLERS, LongTailSampler, class_probabilities

COUNTS = (40, 12, 0, 7, 1)  # class 2 has no image
LABELS = np.random.default_rng(5).permutation(np.repeat(np.arange(5), COUNTS))
OPTIONS = {"progressive": {"epochs": 8}, "exponent": {"exponent": 1.4}, "effective-number": {"beta": 0.97}}
DRAWS = 200_000


def make(how="instance", labels=LABELS, **options):
    return LongTailSampler(labels, how, **{**OPTIONS.get(how, {}), **options})


def shares(how, world_size, **options):
    return [make(how, rank=rank, world_size=world_size, **options) for rank in range(world_size)]


def interleave(parts):
    """First of every part, second of every part, ...: the parts may differ in length by one."""
    rows = itertools.zip_longest(*parts)
    return [index for row in rows for index in row if index is not None]


def p_value(observed, expected):
    """Of Pearson's chi-square test; the survival function of chi-square(k) at x is Q(k/2, x/2)."""
    observed, expected = np.asarray(observed, float), np.asarray(expected, float)
    statistic = ((observed - expected) ** 2 / expected).sum()
    half = torch.tensor([(observed.size - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def one_by_one(counts, how, epoch=0, epochs=1, exponent=1.0, beta=0.9999):
    """Class probabilities from a weight for every single image, as a weighted sampler would hold them."""
    present = [n for n in counts if n]
    weight = {
        "instance": lambda n: 1,
        "class-balanced": lambda n: 1 / n,
        "square-root": lambda n: n**0.5 / n,
        "progressive": lambda n: (1 - epoch / epochs) / sum(counts) + epoch / epochs / len(present) / n,
        "reversed": lambda n: max(counts) / n / n,
        "effective-number": lambda n: 1 / sum(beta**i for i in range(n)),  # E_n = 1 + beta + ... + beta^(n-1)
        "exponent": lambda n: n**-exponent,
    }[how]
    mass = [sum(weight(n) for _ in range(n)) for n in counts]
    return np.array(mass) / sum(mass)


# Probabilities


@pytest.mark.parametrize(
    ("exponent", "wanted"),
    [
        (0, (0.90090, 0.09009, 0.00901)),
        (0.5, (0.70610, 0.22329, 0.07061)),
        (1, (0.33333, 0.33333, 0.33333)),
        (2, (0.00901, 0.09009, 0.90090)),
    ],
)
def test_exponent_by_hand(exponent, wanted):
    found = class_probabilities([100, 10, 1], "exponent", exponent=exponent)
    assert found.round(5).tolist() == list(wanted)


def test_effective_number_by_hand():
    assert class_probabilities([500, 50, 5], "effective-number").round(5).tolist() == [0.33858, 0.33108, 0.33034]


@pytest.mark.parametrize("how", SAMPLERS)
@pytest.mark.parametrize("epoch", [0, 3, 7])
def test_probabilities_equal_the_sum_over_single_images(how, epoch):
    options = {"epoch": epoch, "epochs": 8, "exponent": 1.4, "beta": 0.97}
    found = class_probabilities(COUNTS, how, **options)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, one_by_one(COUNTS, how, **options), rtol=1e-12)
    assert found.sum() == pytest.approx(1, abs=1e-15)
    assert found[2] == 0


@pytest.mark.parametrize(
    ("how", "options", "same"),
    [
        ("exponent", {"exponent": 0}, "instance"),
        ("exponent", {"exponent": 0.5}, "square-root"),
        ("exponent", {"exponent": 1}, "class-balanced"),
        ("exponent", {"exponent": 2}, "reversed"),
        ("progressive", {"epoch": 0, "epochs": 90}, "instance"),
        ("effective-number", {"beta": 0}, "instance"),
        ("effective-number", {"beta": 1 - 1e-12}, "class-balanced"),
    ],
)
def test_kinds_that_meet(how, options, same):
    np.testing.assert_allclose(
        class_probabilities(COUNTS, how, **options), class_probabilities(COUNTS, same), rtol=1e-9, atol=0
    )


def test_progressive_walks_in_equal_steps():
    path = np.array([class_probabilities(COUNTS, "progressive", epoch=t, epochs=10) for t in range(10)])
    step = (class_probabilities(COUNTS, "class-balanced") - class_probabilities(COUNTS, "instance")) / 10
    np.testing.assert_allclose(np.diff(path, axis=0), np.tile(step, (9, 1)), atol=1e-15)


@pytest.mark.parametrize("how", SAMPLERS)
def test_equal_counts_make_all_kinds_equal(how):
    found = class_probabilities([20] * 7, how, epoch=2, epochs=5, exponent=3.3)
    np.testing.assert_allclose(found, np.full(7, 1 / 7), rtol=1e-14)


@pytest.mark.parametrize("exponent", [-1e6, -300, 300, 1e6])
def test_extreme_exponents_do_not_overflow(exponent):
    wanted = [0, 0, 1] if exponent > 0 else [1, 0, 0]
    assert class_probabilities([10**6, 1000, 3], "exponent", exponent=exponent).tolist() == pytest.approx(wanted)


@pytest.mark.parametrize("gap", [1e-9, 1e-11, 1e-13, 2**-53])
def test_beta_close_to_one_keeps_its_digits(gap):
    found = class_probabilities([500, 7, 1], "effective-number", beta=1 - gap)
    np.testing.assert_allclose(found, [1 / 3] * 3, rtol=1e-6)


# Draws


@pytest.mark.parametrize("how", SAMPLERS)
@pytest.mark.parametrize("epoch", [0, 5])
def test_classes_are_drawn_as_often_as_promised(how, epoch):
    drawn = np.bincount(LABELS[make(how, length=DRAWS, seed=1).order(epoch)], minlength=5)
    expected = DRAWS * one_by_one(COUNTS, how, epoch=epoch, epochs=8, exponent=1.4, beta=0.97)
    assert drawn[2] == 0
    assert p_value(drawn[expected > 0], expected[expected > 0]) > 1e-4


@pytest.mark.parametrize("how", SAMPLERS)
def test_images_of_a_class_are_drawn_equally_often(how):
    times = np.bincount(make(how, length=DRAWS, seed=2).order(0), minlength=LABELS.size)
    for label in (0, 1, 3):
        own = times[label == LABELS]
        assert p_value(own, np.full(own.size, own.mean())) > 1e-4


def test_the_test_of_frequencies_sees_a_wrong_sampler():
    drawn = np.bincount(LABELS[make("square-root", length=DRAWS).order(0)], minlength=5)
    wrong = DRAWS * one_by_one(COUNTS, "exponent", exponent=0.45)
    assert p_value(drawn[wrong > 0], wrong[wrong > 0]) < 1e-4
    assert p_value([10, 20, 30], [20, 20, 20]) == pytest.approx(np.exp(-5))  # chi-square(2) at 10


@pytest.mark.parametrize(("uniform", "wanted"), [(0.0, 3), (np.nextafter(1, 0), 0)])
def test_the_ends_of_the_unit_interval_hit_images(monkeypatch, uniform, wanted):
    """Ten probabilities of 0.1 add up to less than 1 in floating point; the first class and the last are empty."""
    labels = [10, 9, 8, 1, 2, 3, 4, 5, 6, 7]
    sampler = LongTailSampler(labels, "class-balanced", num_classes=12)
    monkeypatch.setattr(np.random, "default_rng", lambda seed: SimpleNamespace(random=lambda n: np.full(n, uniform)))
    assert set(sampler.order(0).tolist()) == {wanted}


@pytest.mark.parametrize("how", [kind for kind in SAMPLERS if kind != "instance"])
def test_draws_follow_each_other_independently(how):
    order = make(how, length=DRAWS, seed=3).order(4)
    again = np.mean(order[1:] == order[:-1])
    chance = np.bincount(order, minlength=LABELS.size) / DRAWS
    assert again == pytest.approx((chance**2).sum(), abs=5e-3)


@pytest.mark.parametrize("seed", [0, 1, 2**40])
def test_instance_gives_every_image_once(seed):
    sampler = make(seed=seed)
    assert all(sorted(sampler.order(epoch)) == list(range(60)) for epoch in range(5))


def test_all_permutations_are_equally_likely():
    sampler = make(labels=[0, 0, 1, 1], length=4 * 24_000)
    seen = Counter(map(tuple, sampler.order(0).reshape(-1, 4).tolist()))
    assert len(seen) == 24
    assert p_value(list(seen.values()), [1000] * 24) > 1e-4


def test_instance_of_another_length_chains_permutations():
    order = make(length=150).order(0)
    assert sorted(order[:60]) == sorted(order[60:120]) == list(range(60))
    assert order[:60].tolist() != order[60:120].tolist()
    assert len(set(order[120:])) == len(order[120:]) == 30
    assert len(set(make(length=25).order(0))) == 25


@pytest.mark.parametrize("how", SAMPLERS)
def test_order_is_a_function_of_seed_and_epoch(how):
    orders = {(seed, epoch): make(how, seed=seed).order(epoch) for seed in (0, 1, 2**32) for epoch in (0, 1, 2)}
    assert all(order.dtype == np.int64 and order.shape == (60,) for order in orders.values())
    assert len({tuple(order) for order in orders.values()}) == 9
    used = make(how, seed=1)
    list(used)
    torch.manual_seed(0)
    assert used.order(2).tolist() == used.order(2).tolist() == orders[1, 2].tolist()


def test_kinds_of_labels_make_the_same_sampler():
    kinds = [LABELS.tolist(), LABELS.astype(np.uint8), torch.from_numpy(LABELS), SimpleNamespace(targets=LABELS)]
    frozen = LABELS.copy()
    frozen.flags.writeable = False
    states = [make("reversed", labels).state_dict() for labels in [*kinds, frozen]]
    assert all(state == make("reversed").state_dict() for state in states)


def test_classes_behind_the_last_label_change_nothing():
    wide = make("reversed", num_classes=9)
    assert wide.class_counts.tolist() == [*COUNTS, 0, 0, 0, 0]
    assert wide.order(0).tolist() == make("reversed").order(0).tolist()
    wide.load_state_dict(make("reversed").state_dict())


@pytest.mark.parametrize("how", SAMPLERS)
def test_large_data_sets_are_fast(how):
    rng = np.random.default_rng(0)
    labels = np.concatenate([np.arange(8142), (8142 * rng.random(437_513 - 8142) ** 3).astype(np.int64)])
    begin = time.perf_counter()
    sampler = make(how, labels)
    order = sampler.order(1)
    assert time.perf_counter() - begin < 5
    assert order.shape == (437_513,)
    assert (how == "instance") == (len(np.unique(order)) == 437_513)


# Epochs


def test_set_epoch_does_the_obvious():
    sampler = make("square-root")
    for epoch in (0, 1, 2, 1):
        sampler.set_epoch(epoch)
        assert list(sampler) == sampler.order(epoch).tolist()
    sampler.set_epoch(1)
    assert list(sampler) == sampler.order(1).tolist()


def test_iterating_again_goes_on():
    sampler = make()
    assert [list(sampler) for _ in range(3)] == [sampler.order(epoch).tolist() for epoch in range(3)]
    begun = list(itertools.islice(sampler, 7))
    assert sampler.epoch == 3
    assert begun + list(sampler) == sampler.order(3).tolist()
    assert list(sampler) == sampler.order(4).tolist()


def test_a_glance_at_the_first_batch_is_forgotten():
    sampler = make()
    list(itertools.islice(sampler, 7))
    sampler.set_epoch(0)
    assert list(sampler) == sampler.order(0).tolist()
    sampler.seek(3, 20)
    list(itertools.islice(sampler, 7))
    sampler.set_epoch(3)
    assert list(sampler) == sampler.order(3)[20:].tolist()


def test_the_end_of_an_epoch_is_the_start_of_the_next():
    sampler = make("progressive", epochs=3)
    sampler.seek(1, 60)
    assert (sampler.epoch, sampler.position) == (2, 0)
    assert list(sampler) == sampler.order(2).tolist()
    finished = make("progressive", epochs=3)
    finished.load_state_dict(sampler.state_dict())
    assert finished.epoch == 3  # nothing is left of range(finished.epoch, 3)
    with pytest.raises(ValueError, match=r"epoch of the progressive sampler must lie in \[0, 3\); got 3"):
        next(iter(finished))


# Ranks


@pytest.mark.parametrize(("how", "world_size", "length"), all_pairs(SAMPLERS, [1, 2, 3, 7], [60, 61, 5]))
def test_ranks_share_out_the_sequence(how, world_size, length):
    whole = make(how, length=length).order(2).tolist()
    ranks = shares(how, world_size, length=length)
    for sampler in ranks:
        sampler.set_epoch(2)
    parts = [list(sampler) for sampler in ranks]
    assert interleave(parts) == whole
    assert [len(part) for part in parts] == [len(sampler) for sampler in ranks]
    assert sum(map(len, ranks)) == length


@pytest.mark.parametrize("world_size", [2, 3])
def test_batches_of_ranks_make_up_the_batch_of_one_process(world_size):
    batch = 4
    whole = make("reversed").order(0).tolist()
    parts = [list(sampler) for sampler in shares("reversed", world_size)]
    for step in range(60 // (batch * world_size)):
        union = Counter(index for part in parts for index in part[step * batch : (step + 1) * batch])
        assert union == Counter(whole[step * batch * world_size : (step + 1) * batch * world_size])


class Indices(Dataset):
    targets = LABELS.tolist()

    def __getitem__(self, index):
        return index

    def __len__(self):
        return len(self.targets)


def load(sampler, workers, batch=4, **options):
    timeout = 60 if workers else 0
    return DataLoader(Indices(), batch, sampler=sampler, num_workers=workers, timeout=timeout, **options)


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_through_a_loader(world_size, workers):
    loaders = [load(sampler, workers, persistent_workers=workers > 0) for sampler in shares("instance", world_size)]
    for epoch in range(2):
        for loader in loaders:
            loader.sampler.set_epoch(epoch)
        parts = [[batch.tolist() for batch in loader] for loader in loaders]
        wanted = make().order(epoch).tolist()
        assert Counter(index for part in parts for batch in part for index in batch) == Counter(wanted)
        size = 4 * world_size
        for step, batches in enumerate(itertools.zip_longest(*parts, fillvalue=())):
            assert Counter(itertools.chain(*batches)) == Counter(wanted[step * size : (step + 1) * size])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("steps", [1, 6, 13, 15])
def test_resuming_a_loader_that_fetches_ahead(workers, steps):
    sampler = make("class-balanced")
    sampler.set_epoch(1)
    head = [batch.tolist() for batch in itertools.islice(load(sampler, workers), steps)]
    state = json.loads(json.dumps(sampler.state_dict(consumed=4 * steps)))
    fresh = make("class-balanced")
    fresh.load_state_dict(state)
    tail = []
    for epoch in range(fresh.epoch, 3):
        fresh.set_epoch(epoch)
        tail += [batch.tolist() for batch in load(fresh, 0)]
    assert list(itertools.chain(*head, *tail)) == [*sampler.order(1), *sampler.order(2)]


# State


@pytest.mark.parametrize(("how", "taken", "announced"), all_pairs(SAMPLERS, [0, 1, 17, 59, 60], [True, False]))
def test_an_interruption_leaves_no_trace(how, taken, announced):
    sampler = make(how, seed=4)
    sampler.set_epoch(1)
    head = list(itertools.islice(sampler, taken))
    state = json.loads(json.dumps(sampler.state_dict()))
    fresh = make(how, seed=4)
    fresh.load_state_dict(state)
    tail = []
    for epoch in range(fresh.epoch, 4):
        if announced:
            fresh.set_epoch(epoch)
        tail += list(fresh)
    assert head + tail == [index for epoch in (1, 2, 3) for index in sampler.order(epoch)]
    sampler.seek(1, taken)
    assert sampler.state_dict() == {**state, "epoch": 1 + taken // 60, "position": taken % 60}


@pytest.mark.parametrize(("before", "after"), [(1, 3), (2, 3), (3, 2), (3, 1), (2, 2)])
@pytest.mark.parametrize("taken", [1, 5, 13])
def test_the_number_of_ranks_may_change(before, after, taken):
    old = shares("progressive", before, length=61)
    head = [list(itertools.islice(sampler, taken)) for sampler in old]
    states = [sampler.state_dict() for sampler in old]
    assert all(state == states[0] and state["position"] == taken * before for state in states)
    new = shares("progressive", after, length=61)
    for sampler in new:
        sampler.load_state_dict(states[0])
    rest = interleave([list(sampler) for sampler in new])
    assert interleave(head) + rest == old[0].order(0).tolist()
    assert interleave([list(sampler) for sampler in new]) == old[0].order(1).tolist()


def test_ragged_ranks_agree_at_the_end_of_an_epoch():
    ranks = shares("instance", 3, length=61)  # rank 0 has 21 places, the others 20
    assert len(list(itertools.islice(ranks[0], 21))) == 21
    assert ranks[0].state_dict()["position"] == 61
    for sampler in ranks[1:]:
        list(sampler)
    assert all(sampler.state_dict() == ranks[0].state_dict() for sampler in ranks)
    for sampler in ranks:
        sampler.seek(0, 60)
    assert [len(list(sampler)) for sampler in ranks] == [1, 0, 0]


def test_the_state_is_a_copy_and_plain():
    sampler = make("exponent", seed=np.int64(3), exponent=np.float32(0.5), length=np.int64(9))
    sampler.set_epoch(np.int64(2))
    state = sampler.state_dict(consumed=np.int64(3))
    assert json.loads(json.dumps(state)) == state
    state["settings"]["seed"] = 9
    assert sampler.state_dict()["settings"]["seed"] == 3


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (make("reversed"), r"another how \('reversed' saved, 'instance' here\); make the sampler"),
        (make(seed=1), r"another seed \(1 saved, 0 here\)"),
        (make(length=61), r"another length \(61 saved, 60 here\)"),
        (make(labels=LABELS[::-1]), r"another labels \('\w{16}' saved, '\w{16}' here\)"),
        (make(seed=1, length=9), r"another seed \(1 saved, 0 here\), length \(9 saved, 60 here\)"),
        (make("exponent"), r"how .*, exponent \(1.4 saved, None here\)"),
    ],
)
def test_a_foreign_state_is_refused(other, words):
    sampler = make()
    sampler.seek(2, 5)
    with pytest.raises(ValueError, match=words):
        sampler.load_state_dict(other.state_dict())
    assert (sampler.epoch, sampler.position) == (2, 5)


@pytest.mark.parametrize(
    ("how", "change"),
    [("progressive", {"epochs": 9}), ("exponent", {"exponent": 1}), ("effective-number", {"beta": 0})],
)
def test_only_options_in_use_must_agree(how, change):
    with pytest.raises(ValueError, match=f"another {next(iter(change))} "):
        make(how, **change).load_state_dict(make(how).state_dict())
    make("instance", **change).load_state_dict(make("instance").state_dict())


@pytest.mark.parametrize("state", [None, {}, {"epoch": 1, "position": 2}, {"epoch": 0, "position": 0, "settings": 3}])
def test_a_state_of_something_else_is_refused(state):
    with pytest.raises(ValueError, match=r"state must be what LongTailSampler.state_dict\(\) returned"):
        make().load_state_dict(state)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"position": 61}, ValueError, r"position must lie in \[0, 60\].*got 61"),
        ({"position": -1}, ValueError, "position must be a whole number of at least 0; got -1"),
        ({"position": None}, TypeError, "position must be a whole number; got None"),
        ({"epoch": 0.5}, TypeError, "epoch must be a whole number; got 0.5"),
    ],
)
def test_a_broken_state_is_refused(change, error, words):
    sampler = make()
    sampler.seek(2, 5)
    with pytest.raises(error, match=words):
        sampler.load_state_dict({**make().state_dict(), **change})
    assert (sampler.epoch, sampler.position) == (2, 5)


# Bad input


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"how": "class_balanced"}, ValueError, r"there is no sampler 'class_balanced'; did you mean 'class-balanced'"),
        (
            {"how": "sqrt"},
            ValueError,
            r"there is no sampler 'sqrt'; did you mean 'square-root'\?",
        ),
        ({"how": None}, ValueError, "there is no sampler None; "),
        ({"labels": []}, ValueError, r"labels must be a flat, non-empty list.*shape \(0,\)"),
        ({"labels": [[0, 1], [1, 0]]}, ValueError, r"labels must be a flat.*shape \(2, 2\)"),
        ({"labels": [[0, 1], [1]]}, ValueError, r"labels must be a flat.*got a list that makes no array"),
        ({"labels": [0.0, 1.0]}, ValueError, r"labels must be a flat.*float64"),
        ({"labels": ["cat", "dog"]}, ValueError, r"labels must be a flat.*<U3"),
        ({"labels": [True, False]}, ValueError, r"labels must be a flat.*bool"),
        ({"labels": None}, ValueError, r"labels must be a flat.*Pass the list of labels"),
        ({"labels": torch.zeros(2, dtype=torch.bfloat16)}, ValueError, r"labels must be a flat.*a Tensor that"),
        ({"labels": [0, -1]}, ValueError, r"labels must lie in \[0, .*found -1"),
        ({"num_classes": 4}, ValueError, r"labels must lie in \[0, 4\); found 4"),
        ({"seed": -1}, ValueError, "seed must be a whole number of at least 0; got -1"),
        ({"seed": 1.0}, TypeError, "seed must be a whole number; got 1.0"),
        ({"seed": True}, TypeError, "seed must be a whole number; got True"),
        ({"length": 0}, ValueError, "length must be a whole number of at least 1; got 0"),
        ({"epochs": 0}, ValueError, "epochs must be a whole number of at least 1; got 0"),
        ({"exponent": float("nan")}, ValueError, "exponent must be a finite number; got nan"),
        ({"exponent": float("inf")}, ValueError, "exponent must be a finite number; got inf"),
        ({"exponent": "1"}, TypeError, "exponent must be a number; got '1'"),
        ({"beta": 1.0}, ValueError, r"beta must lie in \[0, 1\); got 1.0. The usual value is 0.9999"),
        ({"beta": -0.1}, ValueError, r"beta must lie in \[0, 1\); got -0.1"),
        ({"beta": float("nan")}, ValueError, r"beta must lie in \[0, 1\); got nan"),
        ({"world_size": 0}, ValueError, "world_size must be a whole number of at least 1; got 0"),
        ({"rank": -1}, ValueError, "rank must be a whole number of at least 0; got -1"),
        ({"rank": 2, "world_size": 2}, ValueError, r"rank must lie in \[0, world_size\) = \[0, 2\); got 2"),
    ],
)
def test_bad_samplers(options, error, words):
    with pytest.raises(error, match=words):
        make(**options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"how": "reverse"}, r"there is no sampler 'reverse'; did you mean 'reversed'"),
        ({"epoch": -1}, "epoch must be a whole number of at least 0; got -1"),
        ({"how": "progressive", "epoch": 3, "epochs": 3}, r"epoch .* must lie in \[0, 3\); got 3. Raise epochs"),
        ({"class_counts": [0, 0]}, "class_counts are all zero"),
        ({"class_counts": [3, -1]}, "class_counts must not be negative; class 1 has -1"),
    ],
)
def test_bad_probabilities(options, words):
    with pytest.raises(ValueError, match=words):
        class_probabilities(**{"class_counts": COUNTS, "how": "instance", **options})


def test_bad_places():
    sampler = make()
    for go in (sampler.set_epoch, sampler.seek, sampler.order):
        with pytest.raises(ValueError, match="epoch must be a whole number of at least 0; got -1"):
            go(-1)
    with pytest.raises(ValueError, match=r"position must lie in \[0, 60\], samples of one epoch; got 61"):
        sampler.seek(0, 61)
    with pytest.raises(ValueError, match=r"consumed must lie in \[0, 60\], samples of one epoch; got 61"):
        sampler.state_dict(consumed=61)
