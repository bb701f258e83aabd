"""The bound against the formulas written out in numpy, and its behaviour in every quantity it depends on."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from spectail import ClassCounts
from spectail.theory import bound
from spectail.theory.terms import cover_size, deviation

COUNTS = [120, 60, 40]


def problem(counts=COUNTS, dim=5, hidden=(8,), bias=False, seed=0, scale=2.0):
    """A random network on separable-ish data."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    means = scale * torch.randn(len(counts), dim, generator=rng)
    features = means[labels] + torch.randn(len(labels), dim, generator=rng)
    torch.manual_seed(seed)
    sizes = [dim, *hidden, len(counts)]
    layers = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b, bias=bias), nn.ReLU()]
    return nn.Sequential(*layers[:-1]), features, labels


def by_hand(matrices, inputs, labels, counts, gamma, delta, r0):
    """Everything from the text of the proposition and its proof, in loops."""
    K, n, N = len(counts), len(matrices), sum(counts)
    h = max(max(W.shape) for W in matrices)
    C = np.zeros((K, K))
    for x, j in zip(inputs, labels, strict=True):
        f = x
        for place, W in enumerate(matrices):
            f = W @ (np.maximum(f, 0) if place else f)
        rival = max((i for i in range(K) if i != j), key=lambda i: f[i])
        if f[j] < gamma + f[rival]:
            C[rival, j] += 1 / counts[j]
    lam = np.array([(c / N + r0) ** -0.5 for c in counts])
    B = max(math.sqrt(sum(v * v for v in x)) for x in inputs)
    S = [np.linalg.svd(W)[1][0] for W in matrices]
    beta = math.prod(S) ** (1 / n)
    balanced = [beta / s * W for s, W in zip(S, matrices, strict=True)]
    sigma = gamma / (114 * n * B * math.sqrt(h * math.log(4 * n * h)) * math.prod(S) ** ((n - 1) / n))
    kl = sum((W**2).sum() for W in balanced) / (2 * sigma**2)
    m = min(counts)
    logarithm = math.log(3 * m / (4 * delta / (n * N ** (1 / (2 * n)))))
    E = 4 * math.sqrt(K / (m - 8 * K) * (kl + logarithm))
    norm = np.linalg.svd(C @ np.diag(lam))[1][0]
    empirical = math.sqrt(K) * norm / lam
    complexity = math.sqrt(K) * lam.max() / lam * E
    ratios = sum((W**2).sum() / s**2 for s, W in zip(S, matrices, strict=True))
    psi = B**2 * n**2 * h * math.log(n * h) * math.prod(S) ** 2 * ratios
    printed = math.sqrt(K / ((m - 8 * K) * gamma**2) * (psi + math.log(n * m / delta)))
    return {
        "spectral_norm": norm, "empirical": empirical, "margin_errors": C.sum(0), "input_norm": B, "width": h,
        "spectral_product": math.prod(S), "norm_ratios": ratios, "psi": psi, "sigma": sigma, "kl": kl,
        "log_term": logarithm, "deviation": E, "complexity": complexity, "per_class": empirical + complexity,
        "total": math.sqrt(K) * (norm + lam.max() * E), "direct": C.sum(0) + math.sqrt(K) * E, "weights": lam,
        "nu": math.sqrt(K), "printed": printed, "layers": n, "smallest": m, "cover": n * N ** (1 / (2 * n)),
    }  # fmt: skip


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("hidden", [(), (8,), (4, 9)])
@pytest.mark.parametrize(("gamma", "delta", "r0"), [(0.3, 0.05, 0.2), (2.0, 0.01, 0.01)])
def test_every_term_is_the_formula(bias, hidden, gamma, delta, r0):
    model, features, labels = problem(hidden=hidden, bias=bias)
    found = bound(model, features, labels, COUNTS, gamma=gamma, delta=delta, r0=r0)
    matrices = []
    linear = [layer for layer in model if isinstance(layer, nn.Linear)]
    for layer in linear:  # biases as a constant input, written out here once more
        W = layer.weight.detach().double().numpy()
        if bias:
            W = np.hstack([W, layer.bias.detach().double().numpy()[:, None]])
            W = W if layer is linear[-1] else np.vstack([W, [0] * (W.shape[1] - 1) + [1]])
        matrices.append(W)
    inputs = features.double().numpy()
    inputs = np.hstack([inputs, np.ones((len(inputs), 1))]) if bias else inputs
    wanted = by_hand(matrices, inputs, labels.tolist(), COUNTS, gamma, delta, r0)
    for name, value in wanted.items():
        np.testing.assert_allclose(np.asarray(getattr(found, name)), value, rtol=1e-9, atol=1e-12, err_msg=name)
    assert found.folded == bias
    assert float(np.max(wanted["margin_errors"])) > 0


def test_chunks_add_up(monkeypatch):
    model, features, labels = problem()
    whole = bound(model, features, labels, COUNTS, gamma=0.5)
    monkeypatch.setattr("spectail.theory.pac_bayes.ROWS", 7)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    parts = bound(model, features[order], labels[order], COUNTS, gamma=0.5)
    assert torch.equal(whole.margin_errors, parts.margin_errors)
    assert (whole.spectral_norm, whole.input_norm) == pytest.approx((parts.spectral_norm, parts.input_norm), rel=1e-14)


def test_only_the_function_counts_not_how_norms_are_shared_by_the_layers():
    model, features, labels = problem(hidden=(8, 6))
    before = bound(model, features, labels, COUNTS, gamma=0.5)
    with torch.no_grad():
        model[0].weight.mul_(8)
        model[4].weight.div_(8)
    after = bound(model, features, labels, COUNTS, gamma=0.5)
    assert after.kl == pytest.approx(before.kl, rel=1e-9)
    assert after.total == pytest.approx(before.total, rel=1e-9)


def test_scaling_logits_and_margin_together_changes_nothing():
    model, features, labels = problem()
    before = bound(model, features, labels, COUNTS, gamma=0.5)
    with torch.no_grad():
        model[0].weight.mul_(4)
    after = bound(model, features, labels, COUNTS, gamma=2.0)
    assert after.total == pytest.approx(before.total, rel=1e-9)
    assert after.spectral_norm == pytest.approx(before.spectral_norm, rel=1e-12)


def test_a_larger_margin_trades_training_errors_for_complexity():
    model, features, labels = problem()
    found = [bound(model, features, labels, COUNTS, gamma=gamma) for gamma in (0.01, 0.1, 0.5, 1.0, 3.0)]
    for small, large in pairwise(found):
        assert large.spectral_norm >= small.spectral_norm
        assert bool((large.margin_errors >= small.margin_errors).all())
        assert large.deviation < small.deviation
    assert found[-1].spectral_norm > found[0].spectral_norm


def test_more_confidence_costs_more():
    model, features, labels = problem()
    found = [bound(model, features, labels, COUNTS, gamma=0.5, delta=delta) for delta in (0.5, 0.1, 1e-3, 1e-9)]
    assert all(b.deviation > a.deviation for a, b in pairwise(found))
    assert len({each.spectral_norm for each in found}) == 1


def test_more_images_of_the_same_kind_make_the_bound_smaller():
    model, features, labels = problem()
    found = [
        bound(model, features.repeat(k, 1), labels.repeat(k), [k * c for c in COUNTS], gamma=0.5) for k in (1, 2, 5)
    ]
    assert all(b.total < a.total for a, b in pairwise(found))
    assert found[0].spectral_norm == pytest.approx(found[2].spectral_norm, rel=1e-12)


@pytest.mark.parametrize("classes", [2, 10])
@pytest.mark.parametrize("kl", [0.0, 1.0, 1e6])
def test_deviation_falls_with_the_smallest_class(classes, kl):
    sizes = [8 * classes + extra for extra in (1, 2, 10, 100, 10_000, 10**7)]
    values = [deviation(classes, m, kl, math.log(0.75 * m / 0.05)) for m in sizes]
    assert all(b < a for a, b in pairwise(values))
    assert deviation(classes, 8 * classes, kl, 1.0) is None


@pytest.mark.parametrize(("layers", "samples"), [(1, 100), (2, 1000), (3, 5000), (8, 10**6)])
def test_the_cover_reaches_every_norm_that_matters(layers, samples):
    """Evenly spaced guesses, no more than the union bound pays for, come within a share 1/n of every norm in range."""
    low, high = 1.0, samples ** (1 / (2 * layers))
    guesses = np.linspace(low, high, math.floor(cover_size(layers, samples)))
    norms = np.linspace(low, high, 2001)
    nearest = np.abs(norms[:, None] - guesses).min(1)
    assert bool((nearest <= norms / layers).all())


def test_direct_is_never_larger():
    for seed in range(5):
        model, features, labels = problem(seed=seed, counts=[200, 70, 40, 35])
        found = bound(model, features, labels, [200, 70, 40, 35], gamma=0.5)
        assert bool((found.direct <= found.per_class * (1 + 1e-12)).all())


def test_undefined_where_a_class_is_small():
    counts = ClassCounts([100, 50, 24], names=["cat", "dog", "otter"])  # 8 K = 24
    model, features, labels = problem(counts=[100, 50, 24])
    found = bound(model, features, labels, counts, gamma=0.5)
    assert not found.defined
    assert not found.informative
    assert (
        found.per_class is found.complexity is found.total is found.deviation is found.direct is found.printed is None
    )
    assert found.spectral_norm > 0  # what exists is reported
    assert "UNDEFINED" in str(found)
    assert "more than 8 K = 24 images in every class, and class 2 ('otter') has 24" in found.explain()
    assert "complexity" in str(found)


def test_an_empty_class_is_undefined_not_an_error():
    model, features, labels = problem(counts=[100, 50, 30])
    keep = labels < 2
    found = bound(model, features[keep], labels[keep], [100, 50, 0], gamma=0.5)
    assert not found.defined
    assert "class 2 has 0" in str(found)


def test_vacuous_in_words():
    model, features, labels = problem()
    found = bound(model, features, labels, COUNTS, gamma=0.5)
    assert found.defined
    assert not found.informative
    text = found.explain()
    assert "DEFINED BUT VACUOUS" in text
    assert "the complexity alone" in text
    assert text == str(found)
    needed = found.images_needed
    assert needed > 1e6
    total = needed * sum(COUNTS) / min(COUNTS)
    logarithm = [math.log(0.75 * m * cover_size(2, total) / found.delta) for m in (needed, needed / 2)]
    assert (
        found.nu * deviation(3, needed, found.kl, logarithm[0])
        < 1
        <= found.nu * deviation(3, needed / 2, found.kl, logarithm[1])
    )


def sign(images):
    """Two classes on a line, told apart by one layer."""
    model = nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0], [-1.0]]))
    labels = torch.arange(2).repeat_interleave(images)
    return model, (1.0 - 2 * labels)[:, None], labels


def test_informative_where_it_can_be():
    images = 1_500_000
    model, features, labels = sign(images)
    found = bound(model, features, labels, [images] * 2, gamma=1.9)
    assert found.informative
    assert found.spectral_norm == 0
    assert 0 < float(found.per_class.max()) < 1
    assert "DEFINED AND INFORMATIVE" in str(found)
    assert "2 of 2 classes" in str(found)
    assert found.images_needed < images


def test_empirical_part_alone_can_make_it_vacuous():
    images = 1_500_000
    model, features, labels = sign(images)
    found = bound(model, features, labels, [images] * 2, gamma=2.1)  # no sample has this margin
    assert found.margin_errors.tolist() == [1, 1]
    assert not found.informative
    assert "the empirical part alone is at least 1.414, because at this margin up to 100.0% of a class" in str(found)
    assert "the complexity alone" not in str(found)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_outside_the_grid_of_norms_it_is_vacuous_so_nothing_false_is_said(scale):
    """The proof covers gamma / 2B <= product of norms <= gamma sqrt(m) / 2B only."""
    model, features, labels = problem()
    with torch.no_grad():
        model[0].weight.mul_(scale)
    found = bound(model, features, labels, COUNTS, gamma=0.5)
    reach = 2 * found.input_norm * found.spectral_product / found.gamma
    assert not 1 <= reach <= math.sqrt(sum(COUNTS))
    assert float(found.per_class.min()) >= 1


def test_known_input_norms():
    for bias in (False, True):
        model, features, labels = problem(bias=bias)
        longest = float(features.double().norm(dim=1).max())
        found = bound(model, features, labels, COUNTS, gamma=0.5)
        same = bound(model, features, labels, COUNTS, gamma=0.5, input_norm=longest)
        more = bound(model, features, labels, COUNTS, gamma=0.5, input_norm=2 * longest)
        assert same.input_norm == pytest.approx(found.input_norm, rel=1e-12)
        assert more.total > found.total
        with pytest.raises(ValueError, match=f"at least the largest norm in features, {longest:.6g}"):
            bound(model, features, labels, COUNTS, gamma=0.5, input_norm=0.9 * longest)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"gamma": 0.0}, ValueError, "gamma is a margin in logit units and must be above 0; got 0.0."),
        ({"gamma": "1"}, TypeError, "gamma must be a number"),
        ({"delta": 1.0}, ValueError, "delta is a probability"),
        ({"r0": 0.0}, ValueError, "r0 must be above 0"),
        ({"class_counts": [120, 60]}, ValueError, "3 outputs and class_counts 2 classes"),
        ({"class_counts": [121, 60, 40]}, ValueError, "class 0 has 121 there and 120 among the labels"),
        ({"labels": torch.zeros(4, dtype=torch.long)}, ValueError, "one entry per sample; got 220 and 4"),
        ({"features": torch.full((220, 5), torch.nan)}, ValueError, "features must be finite"),
        ({"features": torch.zeros(220, 5)}, ValueError, "all features are zero"),
        ({"model": nn.Sequential(nn.Linear(5, 3), nn.Sigmoid())}, TypeError, "layer 1 here is Sigmoid"),
    ],
)
def test_mistakes_are_named(change, error, words):
    model, features, labels = problem()
    given = {"model": model, "features": features, "labels": labels, "class_counts": COUNTS, "gamma": 0.5, **change}
    with pytest.raises(error, match=words):
        bound(**given)
