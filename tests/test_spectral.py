import itertools

import oracle
import pytest
import torch
from car_step import accuracy
from stream import STREAMS, exponential_counts, simulate

from spectail import CAR
from spectail.spectral import chain, exact, filtered, relative_residual, top_singular

SHAPES = [(5, 5), (3, 90), (200, 120), (120, 200), (300, 300)]


def random_matrix(shape, signed, dtype, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=draw, dtype=dtype) if signed else torch.rand(shape, generator=draw, dtype=dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_top_singular_is_the_svd(shape, signed, dtype):
    matrix = random_matrix(shape, signed, dtype)
    sigma, u, v = top_singular(matrix)
    small = 1e-5 if dtype == torch.float32 else 1e-12
    assert sigma.dtype == dtype
    assert float(sigma) == pytest.approx(float(torch.linalg.svdvals(matrix.double())[0]), rel=small)
    assert relative_residual(matrix, sigma, u, v) <= (1e-3 if dtype == torch.float32 else 1e-7)
    assert float(u.norm()) == pytest.approx(1, rel=1e-5)
    assert float(v.norm()) == pytest.approx(1, rel=1e-5)


@pytest.mark.parametrize("size", [20, 150])  # by the SVD, and by the search
@pytest.mark.parametrize("sign", [1, -1])
def test_the_left_vector_has_a_sum_above_zero(size, sign):
    """Whatever the signs in the matrix: else a step further, or another machine, would turn both vectors round."""
    for seed in range(4):
        left, right = (random_matrix((size,), True, torch.float64, 10 * seed + one) for one in range(2))
        matrix = sign * torch.outer(left, right) + 0.01 * random_matrix((size, size), True, torch.float64, seed)
        _, u, v = top_singular(matrix)
        towards = 1 if left.sum() > 0 else -1
        oracle.assert_near(u, towards * left / left.norm(), 0.1)
        oracle.assert_near(v, towards * sign * right / right.norm(), 0.1)


def test_top_singular_of_a_tie_is_still_the_largest_value():
    basis, _ = torch.linalg.qr(random_matrix((150, 150), True, torch.float64))
    values = torch.linspace(1, 0.1, 150, dtype=torch.float64)
    values[1] = 1 - 1e-9
    sigma, _, _ = top_singular(basis @ torch.diag(values) @ basis.T)
    assert float(sigma) == pytest.approx(1, rel=1e-8)


def test_sigma_has_the_gradient_of_the_spectral_norm():
    matrix = random_matrix((80, 100), False, torch.float64).requires_grad_(True)
    sigma, u, v = top_singular(matrix)
    (found,) = torch.autograd.grad(sigma, matrix)
    (wanted,) = torch.autograd.grad(torch.linalg.matrix_norm(matrix, 2), matrix)
    oracle.assert_near(found, wanted, 1e-6)
    oracle.assert_near(found, torch.outer(u, v), 1e-12)


@pytest.mark.parametrize("wrong", [torch.zeros(3), torch.zeros(0, 3), torch.zeros(3, 3, dtype=torch.int64)])
def test_top_singular_refuses_what_is_no_matrix(wrong):
    with pytest.raises(TypeError, match="non-empty floating-point matrix"):
        top_singular(wrong)


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e20])
def test_the_solvers_agree_at_any_scale(size):
    rows = random_matrix((90, 90), False, torch.float32) ** 4
    wanted = exact(rows.double())
    everything = torch.arange(90)
    nothing = torch.zeros(90)
    scaled = rows * size
    for found in (filtered(scaled, everything, nothing), chain(scaled, scaled.sum(0), nothing)):
        assert float(found.spectral_norm) / size == pytest.approx(float(wanted.spectral_norm), rel=1e-5)
        oracle.assert_near(found.left, wanted.left, 1e-3)
        oracle.assert_near(found.right, wanted.right, 1e-3)
        assert found.residual < 1e-2


def of_rank(rank, size, kind, seed):
    """Non-negative matrices of low rank as they arise: few classes seen, classes alike, columns repeated or empty."""
    draw = torch.Generator().manual_seed(1000 * seed + rank)
    few = torch.rand(rank, size, generator=draw, dtype=torch.float64) ** 3
    rows = torch.zeros(size, size, dtype=torch.float64)
    if kind == "seen":
        rows[torch.randperm(size, generator=draw)[:rank]] = few
    elif kind == "alike":
        rows = torch.rand(size, rank, generator=draw, dtype=torch.float64) @ few
    else:  # every column many times over, every second entry empty
        rows = few[torch.randint(rank, (size,), generator=draw)]
        rows[:, ::2] = 0
    return rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("size", [2, 3, 10, 60, 200])
def test_the_chain_is_the_svd_at_every_rank(size, dtype):
    """From the first step on: what follows when the Krylov space is exhausted must not count."""
    compared = 0
    for rank, kind, seed in itertools.product(
        range(1, min(size, 20) + 1), ("seen", "alike", "repeated"), (0, 1)[: 2 if size < 200 else 1]
    ):
        rows = of_rank(rank, size, kind, seed)
        if not rows.any():
            continue
        left, values, right = torch.linalg.svd(rows)
        u, clear = right[0] * right[0].sum().sign(), values[1] <= 0.95 * values[0]
        for scale, warm in ((1.0, 0.0), (1.0, 1.0), (1e-12, 0.0), (1e12, 1.0)):
            given = (rows * scale).to(dtype)
            near = (u + 0.1 * torch.rand(size, generator=torch.Generator().manual_seed(1))) * warm
            found = chain(given, given.sum(0), near.to(dtype))
            case = (rank, kind, seed, scale, warm)
            assert float(found.spectral_norm) / scale == pytest.approx(float(values[0]), rel=1e-5 if clear else 1e-4), (
                case
            )
            if clear:
                oracle.assert_near(found.left, u, 1e-3, str(case))
                oracle.assert_near(found.right, left[:, 0] * left[:, 0].sum().sign(), 1e-3, str(case))
                compared += 1
    assert compared > 10


@pytest.mark.parametrize("rank", [1, 2, 3, 5, 8, 13, 20])
@pytest.mark.parametrize("kind", ["seen", "alike", "repeated"])
def test_the_filter_is_the_svd_at_low_rank(rank, kind):
    rows = of_rank(rank, 60, kind, 0)
    wanted = exact(rows)
    found = filtered(rows.float(), torch.arange(60), torch.zeros(60))
    assert float(found.spectral_norm) == pytest.approx(float(wanted.spectral_norm), rel=1e-5)
    oracle.assert_near(found.left, wanted.left, 1e-3)


@pytest.mark.parametrize(
    "solve",
    [lambda rows, zero: chain(rows, rows.sum(0), zero), lambda rows, zero: filtered(rows, torch.arange(9), zero)],
)
def test_nothing_has_the_norm_zero(solve):
    found = solve(torch.zeros(9, 9), torch.zeros(9))
    assert found.spectral_norm == 0
    assert all(torch.isfinite(part).all() for part in (found.left, found.right, found.residual))


@pytest.mark.parametrize(("num_classes", "steps", "checks"), [(100, 200, 20), (300, 120, 12), (700, 60, 4)])
@pytest.mark.parametrize("stream", STREAMS)
def test_long_runs_stay_accurate_with_the_settings_that_are_timed(num_classes, steps, checks, stream):
    for ema, found in accuracy(num_classes, 128, steps, checks, stream).items():
        assert found["value_error"] <= 1e-5, (ema, found)
        assert found["clear_checks"] >= checks // 3, (ema, found)
        assert found["gradient_error"] <= 1e-3, (ema, found)


@pytest.mark.parametrize(
    ("options", "size"),
    [({}, 128), ({}, 8), ({"beta": 0.0}, 6), ({"beta": 0.9}, 64), ({"ema": "class", "beta": 0.9}, 32)],
    ids=str,
)
@pytest.mark.parametrize("solver", ["auto", "fixed"])
def test_no_step_misses_a_direction_that_a_batch_brings_in(options, size, solver):
    """A well fitted model: confusions in small groups that hardly meet, each able to become the top one in one step."""
    car = CAR(exponential_counts(200), solver=solver, **options)
    for logits, labels in simulate(200, size, 60, seed=3, start=0.8, end=3.0):
        value = car(logits, labels)
        wanted = torch.linalg.svdvals(car.history.dense().double())[0]
        assert float(value) == pytest.approx(float(wanted), rel=1e-5)


@pytest.mark.parametrize("beta", [0.5, 0.9])
def test_strong_confusions_stay_in_range_however_the_history_is_scaled(beta):
    """A model that predicts one class whatever it sees; its squares of squares once left the range of float32."""
    car, draw = CAR(exponential_counts(200), beta=beta), torch.Generator().manual_seed(0)
    for _ in range(70):
        logits = 0.1 * torch.randn(64, 200, generator=draw)
        logits[:, 0] += 12
        value = car(logits, torch.randint(200, (64,), generator=draw))
        wanted = torch.linalg.svdvals(car.history.dense().double())[0]
        assert float(value) == pytest.approx(float(wanted), rel=1e-5)


@pytest.mark.parametrize("beta", [0.3, 0.5])
def test_a_run_resumes_bit_for_bit_when_some_classes_have_all_but_faded(beta):
    counts, draw = exponential_counts(200), torch.Generator().manual_seed(0)
    car = CAR(counts, beta=beta)
    frequency = torch.tensor(counts, dtype=torch.float64)

    def batch():
        labels = torch.multinomial(frequency, 16, replacement=True, generator=draw)
        return torch.randn(16, 200, generator=draw), labels

    for step in range(130):
        car(*batch())
        if step % 10 == 9:
            resumed = CAR(counts, beta=beta)
            resumed.load_state_dict(car.state_dict())
            following = batch()
            assert torch.equal(resumed(*following), car(*following))
            oracle.assert_same_state(resumed, oracle.snapshot(car))


@pytest.mark.parametrize("size", [40, 60, 100])
def test_the_share_of_a_batch_that_barely_meets_the_top_direction_is_exact(size):
    """Half of the classes have the top direction to themselves; the batch has another one, and 1e-5 of the top one."""
    half, touched, rows = size // 2, torch.arange(3) + size // 2, torch.zeros(size, size)
    rows[:half, :half] = random_matrix((half, half), False, torch.float32)
    rows[touched, half + 5] = 0.5 * torch.linalg.matrix_norm(rows, 2) / 3**0.5
    rows[touched, 3] = 1e-5
    triplet, wanted = filtered(rows, touched, torch.zeros(size)), exact(rows.double())
    torch.testing.assert_close(triplet.right[touched].double(), wanted.right[touched], rtol=1e-3, atol=0)


def test_at_a_tie_the_share_of_a_batch_that_barely_meets_it_is_still_exact():
    """Two blocks almost equally strong, then columns with a part of 1e-7 along one of them."""
    rows = torch.zeros(300, 300)
    rows[:10, 10], rows[20:30, 30] = 1.0, 0.9995
    rows[100:104, 200], rows[100:104, 10] = 0.3, 3e-8
    touched = torch.arange(100, 104)
    triplet = filtered(rows, touched, torch.zeros(300))
    u = rows.double().T @ (rows.double() @ torch.linalg.svd(rows.double()).Vh[0])
    wanted = rows.double() @ (u / u.norm()).abs()
    torch.testing.assert_close(triplet.right[touched].double(), (wanted / wanted.norm())[touched], rtol=1e-3, atol=0)
