"""The stability experiment: its exact part, its estimates against slow ones, its figure; and the CM gap."""

import math
from itertools import pairwise

import oracle
import pytest
import torch
from ema_stability import save_figure

from spectail import CAR
from spectail import functional as SF
from spectail.theory import cm_gap, ema_stability, linear_problem

COUNTS = [60, 30, 12, 6]


def run(problem, car, steps, batch_size=16, seed=3):
    """CAR after some steps on a linear model; returns the last batch and its gradient."""
    rng = torch.Generator().manual_seed(seed)
    weight = problem.weight.clone().requires_grad_()
    for _ in range(steps):
        batch = torch.randint(len(problem.labels), (batch_size,), generator=rng)
        value = car(problem.features[batch] @ weight.T + problem.bias, problem.labels[batch])
    (gradient,) = torch.autograd.grad(value, weight)
    return batch, gradient


@pytest.mark.parametrize("ema", ["batch", "class"])
@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9])
def test_the_factor_is_exact_once_the_singular_vectors_are_given(ema, beta):
    problem = linear_problem(COUNTS, dim=5)
    car = CAR(COUNTS, beta=beta, ema=ema)
    batch, gradient = run(problem, car, steps=12)
    weight = problem.weight.clone().requires_grad_()
    logits = problem.features[batch] @ weight.T + problem.bias
    soft = oracle.soft_confusion(logits, problem.labels[batch])
    along = (1 - beta) * car.last.left @ soft @ (car.weights.double() * car.last.right)
    (wanted,) = torch.autograd.grad(along, weight)
    oracle.assert_near(gradient, wanted, 1e-9)


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9])
def test_the_bound_on_the_gradient_norm_holds(beta):
    """Norm of the gradient <= (1 - beta) * largest weight * Frobenius norm of the confusion's derivative."""
    problem = linear_problem(COUNTS, dim=5)
    car = CAR(COUNTS, beta=beta)
    batch, gradient = run(problem, car, steps=12)

    def soft(weight):
        return SF.soft_confusion(problem.features[batch] @ weight.T + problem.bias, problem.labels[batch])

    derivative = torch.autograd.functional.jacobian(soft, problem.weight)
    assert float(gradient.norm()) <= (1 - beta) * float(car.weights.max()) * float(derivative.norm())


@pytest.mark.parametrize("ema", ["batch", "class"])
def test_points_are_what_a_slow_loop_finds(ema):
    problem = linear_problem(COUNTS, dim=5)
    found = ema_stability(problem, betas=[0.6], modes=[ema], steps=21, batch_size=8, seed=5)
    point = found.measured[ema][1]
    slow = oracle.SlowCAR(COUNTS, beta=0.6, ema=ema)
    rng = torch.Generator().manual_seed(5)
    batches = torch.randint(sum(COUNTS), (21, 8), generator=rng)
    present = 1 - (1 - 6 / 108) ** 8
    assert point.warm_up == math.ceil(4 / (0.4 * present))
    whole = oracle.soft_confusion(problem.features @ problem.weight.T + problem.bias, problem.labels)
    gradients, rights, gaps = [], [], []
    for step in range(point.warm_up + 21):
        warm = step < point.warm_up
        batch = torch.randint(sum(COUNTS), (8,), generator=rng) if warm else batches[step - point.warm_up]
        weight = problem.weight.clone().requires_grad_()
        value = slow(problem.features[batch] @ weight.T + problem.bias, problem.labels[batch])
        right = torch.linalg.svd(slow.confusion * slow.weights)[2][0]
        rights.append(right)
        if not warm:
            gradients.append(torch.autograd.grad(value, weight)[0].flatten())
            if (step - point.warm_up) % 10 == 0:
                gaps.append(float((slow.confusion - whole).norm() / whole.norm()))
    gradients = torch.stack(gradients)
    turns = [math.degrees(math.acos(min(1, abs(float(a @ b))))) for a, b in pairwise(rights)]
    assert point.norm == pytest.approx(float(gradients.norm(dim=1).mean()), rel=1e-8)
    assert point.variance == pytest.approx(float(gradients.var(0).sum()), rel=1e-8)
    assert point.mean_norm == pytest.approx(float(gradients.mean(0).norm()), rel=1e-8)
    assert point.noise == pytest.approx(float(gradients.var(0).sum() / gradients.mean(0).square().sum()), rel=1e-8)
    assert point.turn == pytest.approx(sum(turns[-21:]) / 21, rel=1e-5)
    assert point.gap == pytest.approx(sum(gaps) / len(gaps), rel=1e-8)


def test_curves_and_predictions():
    found = ema_stability(linear_problem(COUNTS, dim=5), betas=[0.9, 0.5], steps=60, batch_size=16)
    assert found.betas == [0.0, 0.5, 0.9]
    assert found.predicted_gain == pytest.approx([1, 0.5, 0.1])
    assert found.predicted_variance == pytest.approx([1, 0.25, 0.01])
    for mode in ("batch", "class"):
        gain, variance = found.gain(mode), found.variance(mode)
        assert gain[0] == variance[0] == 1
        assert gain == sorted(gain, reverse=True)
        assert variance == sorted(variance, reverse=True)
        turns = [point.turn for point in found.measured[mode]]
        assert turns == sorted(turns, reverse=True)  # the singular vector settles
    again = ema_stability(linear_problem(COUNTS, dim=5), betas=[0.9, 0.5], steps=60, batch_size=16)
    assert again == found


def test_batch_averaging_keeps_the_gap_that_absent_classes_make():
    """In the long run column j is the true one times the share of batches with class j; class averaging is exact."""
    problem = linear_problem(COUNTS, dim=5)
    found = ema_stability(problem, betas=[0.97], steps=50, batch_size=8)
    whole = oracle.soft_confusion(problem.features @ problem.weight.T + problem.bias, problem.labels)
    absent = torch.tensor([(1 - n / sum(COUNTS)) ** 8 for n in COUNTS], dtype=torch.float64)
    limit = float((whole * absent).norm() / whole.norm())
    assert found.measured["batch"][1].gap == pytest.approx(limit, rel=0.15)
    assert found.measured["class"][1].gap < limit / 2


def test_options_reach_car_and_mistakes_are_named():
    problem = linear_problem(COUNTS, dim=5)
    plain = ema_stability(problem, betas=[], modes=["batch"], steps=5)
    margin = ema_stability(problem, betas=[], modes=["batch"], steps=5, gamma=2.0)
    assert margin.measured["batch"][0].norm != plain.measured["batch"][0].norm
    for options, words in (
        ({"beta": 0.5}, "pass betas and modes"),
        ({"steps": 1}, "steps must be 2 or more"),
        ({"modes": []}, "at least one kind"),
        ({"modes": ["column"]}, "ema must be one of 'batch', 'class'; got 'column'"),
        ({"betas": [1.0]}, r"beta must lie in \[0, 1\)"),
    ):
        with pytest.raises(ValueError, match=words):
            ema_stability(problem, **{"steps": 5, **options})
    with pytest.raises(ValueError, match="spread"):
        linear_problem(COUNTS, spread=0.0)


def test_the_linear_problem_is_bayes_optimal_up_to_a_constant():
    """Its logits differ from the log joint density of the classes by a term that no class changes."""
    problem = linear_problem(COUNTS, dim=5, spread=0.5)
    means = problem.weight * 0.25
    assert torch.allclose(means.norm(dim=1), torch.ones(4, dtype=torch.float64))
    squares = (problem.features[:, None] - means).square().sum(2)
    joint = torch.tensor(COUNTS).double().log() - squares / (2 * 0.25)
    apart = problem.features @ problem.weight.T + problem.bias - joint
    torch.testing.assert_close(apart, apart[:, :1].expand_as(apart))


def test_the_figure_is_written_whole(tmp_path):
    problem = linear_problem(COUNTS, dim=5)
    runs = [ema_stability(problem, betas=[0.5], steps=4, batch_size=8, seed=seed) for seed in (0, 1)]
    save_figure(tmp_path / "new" / "figure.png", runs, "a title")
    assert (tmp_path / "new" / "figure.png").read_bytes()[:4] == b"\x89PNG"
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["figure.png"]
    with pytest.raises(ValueError, match="nothing to draw"):
        save_figure(tmp_path / "none.png", [], "")
    other = ema_stability(problem, betas=[0.7], steps=4, batch_size=8)
    with pytest.raises(ValueError, match="share their betas"):
        save_figure(tmp_path / "none.png", [runs[0], other], "")
    assert not (tmp_path / "none.png").exists()


@pytest.mark.parametrize("shift", [0.0, 1.0])
@pytest.mark.parametrize("surrogate", ["full", "no-gate"])
def test_cm_gap_is_the_slow_one(shift, surrogate):
    counts = oracle.long_tail(6)
    car = CAR(counts, beta=0.7, gamma=0.5, prior_shift=shift, surrogate=surrogate)
    stream = list(oracle.batches(counts, 8, dtype=torch.float64))
    for logits, labels in stream:
        car(logits.requires_grad_(), labels)
    before = car.confusion
    logits = torch.cat([logits for logits, _ in stream]).detach()
    labels = torch.cat([labels for _, labels in stream])
    labels[::7] = -100
    prior = shift * (torch.tensor(counts) / sum(counts)).log()
    whole = oracle.soft_confusion(logits + prior, labels, gamma=0.5, surrogate=surrogate)
    found = cm_gap(car, zip(logits.split(10), labels.split(10), strict=True))
    distance = float((before - whole).norm())
    assert found.absolute == pytest.approx(distance, rel=1e-6)
    assert found.relative == pytest.approx(distance / float(whole.norm()), rel=1e-6)
    u, s, v = torch.linalg.svd(whole * car.weights)
    mine = torch.linalg.svd(before * car.weights)
    assert found.spectral_norm == pytest.approx(float(s[0]), rel=1e-6)
    assert found.left == pytest.approx(abs(float(u[:, 0] @ mine[0][:, 0])), rel=1e-6)
    assert found.right == pytest.approx(abs(float(v[0] @ mine[2][0])), rel=1e-6)
    assert torch.equal(car.confusion, before)


def test_cm_gap_of_no_history_and_of_no_data():
    logits, labels = oracle.one_batch(4)
    found = cm_gap(CAR([3, 2, 2, 1]), [(logits, labels)])
    assert (found.relative, found.left, found.right) == (pytest.approx(1.0), 0.0, 0.0)
    with pytest.raises(ValueError, match="at least one labelled sample"):
        cm_gap(CAR([3, 2, 2, 1]), [])
    with pytest.raises(TypeError, match="class indices"):
        cm_gap(CAR([3, 2, 2, 1]), [(logits, torch.rand(len(logits), 4))])
