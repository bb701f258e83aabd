"""Parts of SAFA-R: which classes give directions, the draws, the two networks, and the three losses by slow loops."""

import math

import pytest
import torch

from spectail.augment.safa import (
    DirectionNets,
    Pairs,
    augment,
    draw_pairs,
    head_classes,
    info_nce,
    mode_seeking_loss,
    recycle_loss,
)


def rows(*values):
    return torch.tensor(values, dtype=torch.float64)


def drawn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def nets():
    """Of width 5 and directions of 3, in double precision, with a last layer that moves things."""
    torch.manual_seed(1)
    found = DirectionNets(5, 3).double()
    for parameter in found.mover[-1].parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return found


# head and tail


def test_a_fifth_of_the_classes_of_cifar100_lt():
    counts = [int(500 * 0.01 ** (c / 99)) for c in range(100)]
    found = head_classes(counts, 0.2)
    assert found.nonzero().flatten().tolist() == list(range(20))
    share = sum(n for n, is_head in zip(counts, found.tolist(), strict=True) if not is_head) / sum(counts)
    assert share == pytest.approx(0.387, abs=5e-4)


@pytest.mark.parametrize(
    ("counts", "share", "wanted"),
    [
        ([5, 80, 100, 7, 20], 0.2, [2]),
        ([5, 80, 100, 7, 20], 0.6, [1, 2, 4]),
        ([7, 7, 7, 7, 7], 0.4, [0, 1]),  # ties go by label
        ([3, 9], 0.01, [1]),  # at least one
        ([3, 9], 0.99, [1]),  # never all
        ([0, 4, 2], 0.5, [1, 2]),
    ],
)
def test_head_classes_are_the_largest(counts, share, wanted):
    assert head_classes(counts, share).nonzero().flatten().tolist() == wanted


@pytest.mark.parametrize("share", [0.0, 1.0, -0.2, math.nan])
def test_a_share_outside_is_refused(share):
    with pytest.raises(ValueError, match="head_share must lie between 0 and 1"):
        head_classes([5, 3, 2], share)


# draws

MIXED = torch.tensor([True, False, True, False, False, True])


@pytest.mark.parametrize("copies", [1, 3])
def test_every_tail_sample_has_its_pairs(copies):
    pairs = draw_pairs(MIXED, copies)
    assert sorted(pairs.tail.tolist()) == sorted([1, 3, 4] * copies)
    assert len(pairs.first) == len(pairs.second) == 3 * copies
    assert {*pairs.first.tolist(), *pairs.second.tolist()} <= {0, 2, 5}


@pytest.mark.parametrize("is_head", [[True], [False], [True, True], [False, False, False], []])
def test_no_pairs_without_both_kinds(is_head):
    assert [len(part) for part in draw_pairs(torch.tensor(is_head, dtype=torch.bool), 2)] == [0, 0, 0]


def test_draws_repeat_with_their_generator():
    first, again, other = (draw_pairs(MIXED, 20, torch.Generator().manual_seed(seed)) for seed in (4, 4, 5))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first.first, other.first)


def test_the_two_draws_are_uniform_independent_and_with_replacement():
    pairs = draw_pairs(MIXED, 6000, torch.Generator().manual_seed(0))
    table = torch.zeros(6, 6)
    table.index_put_((pairs.first, pairs.second), torch.tensor(1.0), accumulate=True)
    shares = (table / table.sum())[[0, 2, 5]][:, [0, 2, 5]]
    torch.testing.assert_close(shares, torch.full((3, 3), 1 / 9), atol=0.01, rtol=0)


# networks


def test_shapes_and_the_default_width_of_a_direction():
    assert DirectionNets(24).read(torch.zeros(2, 24)).shape == (2, 24)
    assert DirectionNets(200).read(torch.zeros(2, 200)).shape == (2, 128)
    nets = DirectionNets(5, 3)
    assert [tuple(p.shape) for p in nets.reader.parameters()] == [(5, 5), (5,), (3, 5), (3,)]
    assert [tuple(p.shape) for p in nets.mover.parameters()] == [(5, 8), (5,), (5, 5), (5,)]


def test_at_first_nothing_moves():
    source = torch.randn(4, 6)
    assert torch.equal(DirectionNets(6).move(source, 100 * torch.randn(4, 6)), source)


def test_both_networks_by_hand(nets):
    source, direction = drawn(1, 5), drawn(1, 3, seed=1)

    def through(layers, inputs):
        (w1, b1), (w2, b2) = ((layer.weight.tolist(), layer.bias.tolist()) for layer in (layers[0], layers[2]))
        hidden = [
            max(sum(w * x for w, x in zip(row, inputs, strict=True)) + b, 0) for row, b in zip(w1, b1, strict=True)
        ]
        return [sum(w * x for w, x in zip(row, hidden, strict=True)) + b for row, b in zip(w2, b2, strict=True)]

    h, delta = source[0].tolist(), direction[0].tolist()
    torch.testing.assert_close(nets.read(source)[0].tolist(), through(nets.reader, h))
    wanted = [x + shift for x, shift in zip(h, through(nets.mover, h + delta), strict=True)]
    torch.testing.assert_close(nets.move(source, direction)[0].tolist(), wanted)


# recycling


def slow_l1(a, b):
    a, b = a.tolist(), b.tolist()
    values = [abs(x - y) for one, two in zip(a, b, strict=True) for x, y in zip(one, two, strict=True)]
    return sum(values) / len(values)


def test_recycling_by_a_slow_loop():
    read, direction, returned, source = drawn(4, 3), drawn(4, 3, seed=1), drawn(4, 5, seed=2), drawn(4, 5, seed=3)
    found = recycle_loss(read, direction, returned, source)
    assert found.item() == pytest.approx(slow_l1(read, direction) + slow_l1(returned, source), rel=1e-12)
    assert recycle_loss(read, read, source, source) == 0


def test_goals_of_recycling_get_no_gradient():
    parts = [drawn(4, size, seed=seed).requires_grad_() for seed, size in enumerate((3, 3, 5, 5))]
    recycle_loss(*parts).backward()
    assert [part.grad is not None for part in parts] == [True, False, True, False]
    torch.testing.assert_close(parts[0].grad, (parts[0] - parts[1]).detach().sign() / 12)
    torch.testing.assert_close(parts[2].grad, (parts[2] - parts[3]).detach().sign() / 20)


# contrast

ANCHOR, CANDIDATES = rows([0.73106, -0.5, 0.0]), rows([1.0, -1.0, 0.0], [0.0, 1.0, -1.0])


@pytest.mark.parametrize(("positive", "wanted"), [(0, 0.06113), (1, 2.82517)])
def test_contrast_of_the_worked_example(positive, wanted):
    found = info_nce(ANCHOR, CANDIDATES, torch.tensor([positive]), temperature=0.5)
    assert found.item() == pytest.approx(wanted, abs=1e-5)


def slow_contrast(anchors, candidates, positive, temperature):
    def unit(vector):
        length = math.sqrt(sum(x * x for x in vector))
        return [x / length for x in vector]

    anchors, candidates = [unit(v) for v in anchors.tolist()], [unit(v) for v in candidates.tolist()]
    losses = []
    for anchor, place in zip(anchors, positive.tolist(), strict=True):
        scores = [sum(a * c for a, c in zip(anchor, one, strict=True)) / temperature for one in candidates]
        losses.append(math.log(sum(math.exp(score) for score in scores)) - scores[place])
    return sum(losses) / len(losses)


@pytest.mark.parametrize("temperature", [0.1, 1.0])
def test_contrast_by_a_slow_loop(temperature):
    anchors, candidates, positive = drawn(5, 4), drawn(7, 4, seed=1), torch.tensor([0, 6, 6, 3, 2])
    found = info_nce(anchors, candidates, positive, temperature)
    assert found.item() == pytest.approx(slow_contrast(anchors, candidates, positive, temperature), rel=1e-10)


def test_contrast_knows_angles_only():
    anchors, candidates, positive = drawn(3, 4), drawn(6, 4, seed=1), torch.tensor([1, 1, 5])
    scaled = info_nce(3 * anchors, candidates * rows(1, 2, 3, 4, 5, 6)[:, None], positive)
    torch.testing.assert_close(scaled, info_nce(anchors, candidates, positive))
    order = torch.tensor([5, 3, 1, 0, 2, 4])
    moved = info_nce(anchors, candidates[order], torch.tensor([2, 2, 0]))
    torch.testing.assert_close(moved, info_nce(anchors, candidates, positive))


def test_equal_candidates_cannot_be_told_apart():
    same = drawn(1, 4).expand(6, 4)
    assert info_nce(drawn(3, 4), same, torch.tensor([0, 1, 2])).item() == pytest.approx(math.log(6))


def test_a_positive_gets_no_gradient_and_a_negative_does():
    anchors, candidates = drawn(2, 4).requires_grad_(), drawn(3, 4, seed=1).requires_grad_()
    info_nce(anchors, candidates, torch.tensor([1, 1]), 0.5).backward()
    assert candidates.grad.abs().sum(1).gt(0).tolist() == [True, False, True]
    assert anchors.grad.abs().sum(1).gt(0).all()
    assert torch.autograd.gradcheck(
        lambda a: info_nce(a, candidates.detach(), torch.tensor([1, 0]), 0.5), drawn(2, 4).requires_grad_()
    )


def test_zero_vectors_do_not_spoil_the_contrast():
    anchors = torch.zeros(2, 4, requires_grad=True)
    found = info_nce(anchors, torch.zeros(3, 4), torch.tensor([0, 2]))
    found.backward()
    assert found.item() == pytest.approx(math.log(3))
    assert torch.isfinite(anchors.grad).all()


# mode seeking

DELTAS = rows([0.5, -0.5, 0.0]), rows([0.0, 1.0, 1.0])
MOVED = rows([1.4, -0.3, 2.1]), rows([1.1, 0.6, 2.8])


def test_mode_seeking_of_the_worked_example():
    assert mode_seeking_loss(*DELTAS, *MOVED).item() == pytest.approx(1.57892, abs=5e-6)


def slow_mode(first, second, one, two, clamp):
    found = []
    for a, b, c, d in zip(first, second, one, two, strict=True):
        found.append(min(slow_l1(a[None], b[None]) / (slow_l1(c[None], d[None]) + 1e-5), clamp))
    return sum(found) / len(found)


@pytest.mark.parametrize("clamp", [10.0, 0.9])
def test_mode_seeking_by_a_slow_loop(clamp):
    parts = drawn(6, 3), drawn(6, 3, seed=1), drawn(6, 5, seed=2), drawn(6, 5, seed=3)
    wanted = slow_mode(*parts, clamp)
    assert mode_seeking_loss(*parts, clamp=clamp).item() == pytest.approx(wanted, rel=1e-12)
    swapped = mode_seeking_loss(parts[1], parts[0], parts[3], parts[2], clamp=clamp)
    assert swapped.item() == pytest.approx(wanted, rel=1e-12)


def test_the_ratio_is_limited_when_nothing_moves():
    still = drawn(4, 5).requires_grad_()
    found = mode_seeking_loss(drawn(4, 3), drawn(4, 3, seed=1), still, still * 1.0)
    found.backward()
    assert found.item() == 10.0
    assert torch.equal(still.grad, torch.zeros_like(still))


def test_the_same_direction_twice_costs_nothing():
    delta, moved = drawn(4, 3), drawn(4, 5).requires_grad_()
    found = mode_seeking_loss(delta, delta, moved, moved * 1.0)
    found.backward()
    assert found == 0
    assert torch.isfinite(moved.grad).all()


def test_mode_seeking_drives_features_apart_and_leaves_directions_alone():
    first, second = (part.clone().requires_grad_() for part in DELTAS)
    one, two = (part.clone().requires_grad_() for part in MOVED)
    mode_seeking_loss(first, second, one, two).backward()
    assert first.grad is None
    assert second.grad is None
    step = 1e-3
    further = mode_seeking_loss(*DELTAS, (one - step * one.grad).detach(), (two - step * two.grad).detach())
    assert further < mode_seeking_loss(*DELTAS, *MOVED)
    assert torch.autograd.gradcheck(lambda a, b: mode_seeking_loss(*DELTAS, a, b), (one, two))


# all together

PAIRS = Pairs(torch.tensor([1, 3, 3, 4]), torch.tensor([0, 2, 0, 2]), torch.tensor([2, 2, 2, 0]))


def test_one_batch_pair_by_pair(nets):
    features = drawn(6, 5)
    found = augment(nets, features, PAIRS, temperature=0.3, clamp=2.0)
    with torch.no_grad():
        read = nets.read(features)
        parts = []
        for tail, first, second in zip(*(part.tolist() for part in PAIRS), strict=True):
            h = features[tail : tail + 1]
            one, two = (nets.move(h, read[place : place + 1]) for place in (first, second))
            back = nets.move(one, read[tail : tail + 1])
            recycle = slow_l1(nets.read(one), read[first : first + 1]) + slow_l1(back, h)
            contrast = slow_contrast(nets.read(one), read, torch.tensor([first]), 0.3)
            parts.append((recycle, contrast, slow_mode(read[first][None], read[second][None], one, two, 2.0)))
            torch.testing.assert_close(found.moved[len(parts) - 1 : len(parts)], one)
    wanted = [sum(column) / len(parts) for column in zip(*parts, strict=True)]
    torch.testing.assert_close([loss.item() for loss in found[1:4]], wanted)


@pytest.mark.parametrize("term", ["moved", "recycle", "contrastive", "mode_seeking"])
def test_features_get_no_gradient_and_the_networks_do(nets, term):
    features = drawn(6, 5).requires_grad_()
    getattr(augment(nets, features, PAIRS, clamp=1e6), term).sum().backward()
    assert features.grad is None
    for layer in (nets.reader[0], nets.reader[2], nets.mover[0], nets.mover[2]):
        assert layer.weight.grad.abs().sum() > 0


def test_the_first_steps_move_something():
    """T begins at zero, and the limit takes the mode-seeking gradient away: the other terms must start it."""
    torch.manual_seed(0)
    nets, features, is_head = DirectionNets(16), torch.randn(48, 16), torch.arange(48) % 3 > 0
    first = augment(nets, features, draw_pairs(is_head))
    assert torch.equal(first.moved, features[~is_head])
    assert first.shift == 0
    assert first.mode_seeking.item() > 8  # 10 but where a direction is drawn twice
    optimizer = torch.optim.Adam(nets.parameters(), 1e-3)
    for _ in range(200):
        optimizer.zero_grad()
        found = augment(nets, features, draw_pairs(is_head))
        (0.1 * found.recycle + 0.1 * found.contrastive + 0.01 * found.mode_seeking).backward()
        optimizer.step()
    assert found.shift > 0.1
    assert found.contrastive < 0.8 * first.contrastive
    assert found.mode_seeking < 2.0


def test_the_size_of_a_shift(nets):
    features = drawn(6, 5)
    found = augment(nets, features, PAIRS)
    source = features[PAIRS.tail]
    assert found.shift.item() == pytest.approx(slow_l1(found.moved, source) / slow_l1(source, 0 * source))
    assert not found.shift.requires_grad


@pytest.mark.parametrize("size", [1, 4])
def test_without_pairs_every_term_is_zero_and_no_parameter_is_left_out(nets, size):
    none = torch.zeros(0, dtype=torch.int64)
    found = augment(nets, drawn(size, 5), Pairs(none, none, none))
    assert [loss.item() for loss in found[1:]] == [0.0] * 4
    assert found.moved.shape == (0, 5)
    (found.recycle + found.contrastive + found.mode_seeking).backward()
    for parameter in nets.parameters():
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, torch.zeros_like(parameter))


def test_half_precision_is_computed_in_full():
    nets, features = DirectionNets(5, 3), drawn(6, 5).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        found = augment(nets, features, PAIRS)
    assert {part.dtype for part in found} == {torch.float32}
    wanted = augment(nets, features.float(), PAIRS)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
