"""LongTailClassifier: scikit-learn's own checks, oracles written by hand, and what a user may do wrong."""

import pickle
import warnings

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse import csr_matrix
from scipy.special import softmax
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import spectail.sklearn
from spectail.fit import crossfit
from spectail.fit.candidates import trainings
from spectail.fit.temperature import class_weights, fit_temperature
from spectail.sklearn import LongTailClassifier

COUNTS = (300, 60, 12, 4)


def best_temperature(logits, labels, by_class=False):
    return fit_temperature(logits, labels, class_weights(labels, logits.shape[1], alike=by_class))


def rows(counts=COUNTS, seed=0, width=8, gap=1.2, means_of=0):
    """A mixture; the same ``means_of`` gives the same classes."""
    means = np.random.default_rng(means_of).normal(size=(len(counts), width)) * gap
    labels = np.repeat(np.arange(len(counts)), counts)
    return means[labels] + np.random.default_rng(seed + 1).normal(size=(len(labels), width)), labels


@pytest.fixture
def few_candidates(monkeypatch):
    """Cross entropy and Balanced Softmax on standardised features only."""
    monkeypatch.setattr(
        spectail.sklearn, "trainings", lambda width, methods, rows: trainings(width, ["balanced-softmax"])[::4]
    )


# -- scikit-learn's checks --


@pytest.mark.parametrize("settings", [{"method": "ce"}, {"method": "car-balanced"}, {"method": "auto", "folds": 2}])
def test_checks_of_scikit_learn(settings, few_candidates):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the checks, not of the classifier
        done = check_estimator(LongTailClassifier(**settings, max_iter=30), on_fail=None, on_skip=None)
    assert [one for one in done if one["status"] not in ("passed", "skipped")] == []
    assert {one["check_name"] for one in done if one["status"] == "skipped"} <= {"check_array_api_input"}
    assert len(done) > 40


# -- oracles --


@pytest.mark.parametrize("counts", [COUNTS, (40, 8)])
def test_decisions_probabilities_and_predictions_agree(counts):
    X, y = rows(counts)
    names = np.array(["otter", "cat", "dog", "ant"])[y]
    found = LongTailClassifier("balanced-softmax", max_iter=60).fit(X, names)
    assert found.classes_.tolist() == sorted(set(names))
    decisions, shares = found.decision_function(X), found.predict_proba(X)
    if len(counts) == 2:
        assert decisions.shape == (48,)
        decisions = np.stack([np.zeros(48), decisions], axis=1)
    np.testing.assert_allclose(shares, softmax(decisions, axis=1), rtol=1e-9)
    np.testing.assert_allclose(shares.sum(1), 1)
    assert (found.predict(X) == found.classes_[decisions.argmax(1)]).all()


def test_cross_entropy_is_logistic_regression():
    X, y = rows((60, 50, 40), width=4)
    ours = LongTailClassifier("ce", features="raw", batch_size=150, max_iter=1_500, learning_rate=0.05).fit(X, y)
    theirs = LogisticRegression(C=np.inf, max_iter=2_000, tol=1e-8).fit(X, y)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=0.01)
    assert ours.n_iter_ == 1_500
    assert ours.converged_ is None
    assert (ours.shift_, ours.temperature_) == (0.0, 1.0)


def test_balanced_softmax_is_cross_entropy_without_the_prior():
    """On a model that fits both, their logits differ by the log prior."""
    X, y = rows((120, 20), width=3)
    settings = {"features": "standard", "batch_size": 140, "max_iter": 1_500, "learning_rate": 0.05}
    plain, balanced = (LongTailClassifier(name, **settings).fit(X, y) for name in ("ce", "balanced-softmax"))
    difference = balanced.decision_function(X) - plain.decision_function(X)
    np.testing.assert_allclose(difference, np.log(120 / 20), atol=0.05)


def test_auto_balances_for_balance_and_leaves_the_prior_for_overall(few_candidates):
    X, y = rows(gap=0.7)
    unseen, labels = rows((200,) * 4, seed=7, gap=0.7)
    balanced, overall = (LongTailClassifier(goal=goal, max_iter=80).fit(X, y) for goal in ("balanced", "overall"))
    scores = [balanced_accuracy_score(labels, one.predict(unseen)) for one in (balanced, overall)]
    assert scores[0] > scores[1] + 0.05
    assert balanced.scores_["chosen"]["balanced"] >= balanced.scores_["cross entropy"]["balanced"]
    assert "Balanced Softmax" in balanced.method_ or balanced.shift_ > 0
    assert "cross entropy" in overall.method_
    assert abs(overall.shift_) <= 0.5
    assert set(overall.scores_["chosen"]) == {"balanced", "overall", "tail", "worst", "lowest10"}
    assert not hasattr(overall.set_params(method="ce", goal="balanced").fit(X, y), "scores_")


def test_auto_has_shift_and_temperature_in_its_decisions(few_candidates):
    X, y = rows(gap=0.7)
    found = LongTailClassifier(max_iter=80).fit(X, y)
    bare = found.model_.model(torch.from_numpy(X.astype(np.float32)).double()).numpy()
    prior = np.log(np.array(COUNTS) / sum(COUNTS))
    wanted = (bare - found.shift_ * prior) / found.temperature_
    np.testing.assert_allclose(found.decision_function(X), wanted, atol=1e-5)
    assert found.temperature_ != 1


def test_what_the_caller_sets_holds_for_every_candidate(monkeypatch):
    seen = []
    crossed = spectail.sklearn.cross_fit
    monkeypatch.setattr(spectail.sklearn, "cross_fit", lambda result, tables, ways, *rest, **more: seen.extend(ways) or
                        crossed(result, tables, ways[:1], *rest, **more))  # fmt: skip
    X, y = rows((500, 5))
    LongTailClassifier(features="power", weight_decay=0.5, learning_rate=0.01, max_iter=5).fit(X, y)
    assert {(way.features, way.decay, way.lr) for way in seen} == {("power", 0.5, 0.01)}
    assert len({way.title for way in seen}) == len(seen) == len({way.name for way in trainings(8)})


def test_the_length_is_found_and_doubt_is_said(monkeypatch, capsys):
    X, y = rows()
    found = LongTailClassifier("ce", verbose=True).fit(X, y)
    assert found.converged_ is True
    assert "After 252 steps the held-out loss is" in capsys.readouterr().out
    monkeypatch.setattr(spectail.sklearn.find_length, "__kwdefaults__", {"ladder": (2, 4), "least": 0})
    with pytest.warns(ConvergenceWarning, match="not trained to the end.* max_iter="):
        assert LongTailClassifier("ce").fit(X, y).converged_ is False


def test_options_reach_the_method():
    X, y = rows()

    def share_of_the_first(**options):
        found = LongTailClassifier("balanced-softmax", max_iter=100, options=options).fit(X, y)
        return np.mean(found.predict(X) == 0)

    assert share_of_the_first(tau=0.0) > share_of_the_first(tau=2.0)
    shares = [
        LongTailClassifier("car", max_iter=50, options={"car": {"alpha": alpha}}).fit(X, y).predict_proba(X)
        for alpha in (0.0, 5.0)
    ]
    assert np.abs(shares[0] - shares[1]).max() > 1e-3


def test_temperature_is_the_best_of_a_grid_and_keeps_doubt_with_few_rows():
    random = np.random.default_rng(0)
    labels = random.integers(3, size=400)
    logits = 5 * (np.eye(3)[labels] + random.normal(size=(400, 3)))
    grid = np.exp(np.linspace(np.log(0.1), np.log(10), 2_001))
    costs = [-np.log(softmax(logits / one, axis=1)[np.arange(400), labels]).mean() for one in grid]
    assert best_temperature(logits, labels) == pytest.approx(grid[np.argmin(costs)], rel=0.02)
    certain = 3 * np.eye(2)[[0, 1, 0]]
    assert softmax(certain / best_temperature(certain, np.array([0, 1, 0])), axis=1).max() < 0.95
    rare = np.array([0] * 99 + [1])  # always 0, and sure of it: of two classes that is one of two right
    logits = np.tile([2.0, 0.0], (100, 1))
    assert best_temperature(logits, rare) < 1 < best_temperature(logits, rare, by_class=True)


# -- small data --


@pytest.mark.parametrize(
    ("method", "counts"),
    [
        *[(method, counts) for method in ("ce", "car-balanced", "ldam-drw", "auto") for counts in ((2, 2), (5, 1, 1))],
        ("auto", (3, 1)),
        ("ce", (1, 1)),
        ("car-balanced", (1, 1, 1)),
    ],
)
def test_few_rows(method, counts, few_candidates, monkeypatch):
    monkeypatch.setattr(crossfit, "SHORTER", (10, 20))
    monkeypatch.setattr(spectail.sklearn.find_length, "__kwdefaults__", {"ladder": (10, 20), "least": 0})
    X, y = rows(counts, gap=4.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = LongTailClassifier(method).fit(X, y)
    assert np.isfinite(found.predict_proba(X)).all()
    assert found.predict_proba(X).shape == (len(y), len(counts))


# -- with the tools of scikit-learn --


def test_pipeline_grid_and_cross_validation():
    X, y = rows((60, 20))
    names = np.array(["no", "yes"])[y]
    pipeline = make_pipeline(StandardScaler(), LongTailClassifier("ce", max_iter=20))
    grid = {"longtailclassifier__method": ["ce", "balanced-softmax"], "longtailclassifier__weight_decay": [0.0, 1.0]}
    search = GridSearchCV(pipeline, grid, cv=2, scoring="balanced_accuracy").fit(X, names)
    assert search.best_score_ > 0.5
    assert set(cross_val_predict(search.best_estimator_, X, names, cv=2)) == {"no", "yes"}
    assert clone(pipeline[-1]).get_params() == pipeline[-1].get_params()


def test_saved_and_loaded(tmp_path):
    X, y = rows((30, 10, 5))
    found = LongTailClassifier("ldam-drw", max_iter=20).fit(X, y)
    joblib.dump(found, tmp_path / "model.joblib")
    for copy in (joblib.load(tmp_path / "model.joblib"), pickle.loads(pickle.dumps(found))):
        assert (copy.decision_function(X) == found.decision_function(X)).all()


def test_data_frames_keep_their_names():
    X, y = rows((30, 10), width=3)
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    found = LongTailClassifier("ce", max_iter=20).fit(frame, pd.Series(y, name="label"))
    assert found.feature_names_in_.tolist() == ["a", "b", "c"]
    assert found.n_features_in_ == 3
    assert (found.predict(frame) == LongTailClassifier("ce", max_iter=20).fit(X, y).predict(X)).all()
    with pytest.raises(ValueError, match="feature names should match"):
        found.predict(frame[["c", "b", "a"]])


def test_the_seed_may_be_a_generator():
    X, y = rows((30, 10))

    def decisions(seed):
        return LongTailClassifier("ce", max_iter=10, random_state=seed).fit(X, y).decision_function(X)

    assert (decisions(3) == decisions(3)).all()
    assert (decisions(np.random.RandomState(3)) == decisions(np.random.RandomState(3))).all()
    assert not (decisions(3) == decisions(4)).all()
    assert decisions(None).shape == (40,)


# -- bad input --


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "bbn"}, "method must be 'auto' or a single loss; got 'bbn': choose from ce, focal"),
        ({"method": "car_balanced"}, "got 'car_balanced': did you mean 'car-balanced'"),
        ({"method": None}, "method must be 'auto' or a single loss; got None"),
        ({"goal": "recall"}, "there is no goal 'recall'"),
        ({"keep": ("overal=80",)}, "there is no figure 'overal' to keep; did you mean 'overall'"),
        ({"method": "ce", "goal": "worst"}, "goal and keep are what method='auto' chooses for"),
        ({"options": {"tau": 1.0}}, "options are those of one method"),
        ({"method": "balanced-softmax", "options": {"tua": 1.0}}, "unknown setting 'options.tua'; did you mean 'tau'"),
        ({"method": "ce", "features": "pca"}, "features must be one of 'raw', 'standard', 'power', 'projected'"),
        ({"method": "ce", "learning_rate": 0}, "learning_rate must be more than 0; got 0"),
        ({"method": "ce", "weight_decay": -1.0}, "weight_decay must be at least 0"),
        ({"method": "ce", "max_iter": 0}, "max_iter must be at least 1"),
        ({"method": "ce", "folds": 1}, "folds must be at least 2"),
    ],
)
def test_wrong_parameters_get_a_sentence(settings, message):
    X, y = rows((6, 4))
    with pytest.raises(ValueError, match=message):
        LongTailClassifier(**settings).fit(X, y)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda X, y: (np.where(X[0, 0] == X, np.nan, X), y), ValueError, "Input X contains NaN"),
        (lambda X, y: (X, np.zeros(len(y))), ValueError, "needs rows of two classes or more; y has one class only"),
        (lambda X, y: (csr_matrix(X), y), TypeError, "[Ss]parse"),
        (lambda X, y: (X, X[:, 0]), ValueError, "Unknown label type: continuous"),
        (lambda X, y: (X[:, :0], y), ValueError, "0 feature"),
        (lambda X, y: (X[:2], np.array([0, 1])), ValueError, "every class of y has one row only; name a method"),
    ],
)
def test_wrong_data_get_a_sentence(change, error, message):
    X, y = rows((6, 4))
    with pytest.raises(error, match=message):
        LongTailClassifier(max_iter=5).fit(*change(X, y))


def test_a_floor_out_of_reach_is_said(few_candidates):
    X, y = rows((40, 12), gap=0.1)
    with pytest.warns(UserWarning, match="No candidate keeps the floor"):
        found = LongTailClassifier(goal="tail", keep=("overall=100",), max_iter=20).fit(X, y)
    assert found.predict(X).shape == (52,)
