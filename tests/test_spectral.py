import oracle
import pytest
import torch
from car_step import accuracy
from stream import exponential_counts, simulate

from spectail import CAR
from spectail.spectral import chain, exact, relative_residual, squared, top_singular

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
    for found in (squared(scaled, everything, nothing), chain(scaled, scaled.sum(0), nothing)[0]):
        assert float(found.spectral_norm) / size == pytest.approx(float(wanted.spectral_norm), rel=1e-5)
        oracle.assert_near(found.left, wanted.left, 1e-3)
        oracle.assert_near(found.right, wanted.right, 1e-3)
        assert found.residual < 1e-2


@pytest.mark.parametrize(("num_classes", "steps", "checks"), [(100, 300, 30), (300, 200, 20), (1000, 160, 8)])
def test_long_runs_stay_accurate_with_the_settings_that_are_timed(num_classes, steps, checks):
    for ema, found in accuracy(num_classes, 128, steps, checks).items():
        assert found["value_error"] <= 1e-5, (ema, found)
        assert found["clear_checks"] >= checks // 3, (ema, found)
        assert found["gradient_error"] <= 1e-3, (ema, found)


@pytest.mark.parametrize(
    ("options", "size"),
    [({}, 128), ({}, 8), ({"beta": 0.0}, 6), ({"beta": 0.9}, 64), ({"ema": "class", "beta": 0.9}, 32)],
    ids=str,
)
def test_no_step_misses_a_direction_that_a_batch_brings_in(options, size):
    """A well fitted model: confusions in small groups that hardly meet, each able to become the top one in one step."""
    car = CAR(exponential_counts(200), **options)
    for logits, labels in simulate(200, size, 120, seed=3, start=0.8, end=3.0):
        value = car(logits, labels)
        wanted = torch.linalg.svdvals(car.history.dense().double())[0]
        assert float(value) == pytest.approx(float(wanted), rel=1e-5)
