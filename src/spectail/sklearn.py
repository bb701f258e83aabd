"""A classifier for scikit-learn that does not fail on rare classes. It needs the extra ``[sklearn]``."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import sklearn.base
import torch
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

from ._utils.checks import Limits, check_choice
from ._utils.names import nearest
from .data.folds import make_folds
from .fit.candidates import Training, trainings
from .fit.choice import choose_candidate
from .fit.crossfit import CrossFit, Table, cross_fit
from .fit.goals import Goal
from .methods.registry import METHODS
from .models.adjustment import Adjusted
from .models.feature_transform import KINDS, FeatureTransform
from .training.config import TrainConfig
from .training.config_io import from_dict
from .training.head_settings import rate_for
from .training.heads import train_head, trains_on_arrays
from .training.length import find_length

__all__ = ["LongTailClassifier"]

BLOCK = 8192  # rows that are predicted together
BATCH = 128  # rows of a step; large sets have up to four times as many
UNJUDGED = 1_000  # steps where no row can be held out
LIMITS = {
    "learning_rate": Limits(0, open_low=True), "weight_decay": Limits(0), "batch_size": Limits(1),
    "max_iter": Limits(1), "folds": Limits(2),
}  # fmt: skip


class LongTailClassifier(sklearn.base.ClassifierMixin, sklearn.base.BaseEstimator):  # type: ignore[misc] # no types
    """A linear classifier for features when some classes have many rows and others few.

    It trains the same heads as `spectail fit` and the probes of `spectail train`, on an array: embeddings of images, of
    texts or of sounds, or a table of numbers. Features are converted to single precision.

    Args:
        method: ``"auto"`` compares several losses, transforms of the features, weight decays and shifts of the logits
            by cross-fitting, and takes the simplest of the best for ``goal``. The name of a method that is
            a single loss, such as ``"car-balanced"``, ``"balanced-softmax"``, ``"ldam-drw"`` or ``"ce"``, trains that
            method.
        goal: the figure that ``"auto"`` makes as large as it can: ``"balanced"``, the mean of the class accuracies;
            ``"overall"``, the plain accuracy; ``"tail"``, ``"worst"`` or ``"lowest10"``.
        keep: floors in percent that ``"auto"`` keeps for other figures, such as ``("overall=80",)``.
        features: what is done to the features first: ``"raw"``, ``"standard"``, ``"power"`` or ``"projected"``. None
            leaves the choice to ``"auto"``; a named method then gets standardised features.
        learning_rate: learning rate of AdamW at its highest point. None is 0.15 over the square root of the number of
            columns after the transform.
        weight_decay: weight decay of AdamW. None leaves the choice to ``"auto"``; a named method then has 0.
        batch_size: rows in a step. None is 128, 256 from about 23,000 rows on, and 512 from about 46,000.
        max_iter: number of training steps, rounded to whole passes over the rows. None finds the length: it is
            doubled until the loss of held-out rows stops falling.
        options: settings of a named method, as in the ``config.yaml`` of a run: ``{"tau": 1.0}``, or
            ``{"car": {"alpha": 2}}`` for those of CAR.
        folds: number of parts into which the rows are split. ``"auto"`` predicts each part by a classifier that was
            trained on the others; a named method holds one part out to find its length.
        random_state: seed of the weights, of the order of the rows and of the folds.
        verbose: whether to print the progress.

    Attributes:
        classes_: class labels, sorted.
        method_: what was trained, in words.
        shift_: multiple of the log prior that is subtracted from the logits; 0 for a named method.
        temperature_: divisor of the logits that gives the best out-of-fold probabilities; 1 for a named method.
        scores_: with ``"auto"``, the out-of-fold figures of the chosen classifier and of cross entropy, in percent.
        converged_: whether the length was found; None if ``max_iter`` was given, or if no row could be held out.
        n_iter_: number of steps of the last training.
        model_: the torch module from features to adjusted logits, in double precision.
        n_features_in_: columns of the features.
        feature_names_in_: names of the columns, if they have names.

    Example:
        >>> from sklearn.datasets import make_blobs
        >>> X, y = make_blobs([90, 10], centers=[[0, 0], [3, 3]], random_state=0)
        >>> classifier = LongTailClassifier("balanced-softmax", max_iter=300, learning_rate=0.05).fit(X, y)
        >>> classifier.predict([[0, 0], [3, 3]])
        array([0, 1])
    """

    model_: nn.Module

    def __init__(
        self,
        method: str = "auto",
        *,
        goal: str = "balanced",
        keep: Sequence[str] = (),
        features: str | None = None,
        learning_rate: float | None = None,
        weight_decay: float | None = None,
        batch_size: int | None = None,
        max_iter: int | None = None,
        options: Mapping[str, Any] | None = None,
        folds: int = 5,
        random_state: int | np.random.RandomState | None = 0,
        verbose: bool = False,
    ) -> None:
        self.method = method
        self.goal = goal
        self.keep = keep
        self.features = features
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.options = options
        self.folds = folds
        self.random_state = random_state
        self.verbose = verbose

    # -- training --

    def fit(self, X: Any, y: Any) -> LongTailClassifier:
        """Train on features ``X`` (N, D) with labels ``y`` (N,) of any kind."""
        self._check_parameters()
        X, y = validate_data(self, X, y, dtype=np.float32)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError("LongTailClassifier needs rows of two classes or more; y has one class only.")
        table = Table(X, labels.astype(np.int64), tuple(map(str, range(len(self.classes_)))))
        seed = self.random_state
        if not isinstance(seed, int | np.integer):
            seed = check_random_state(seed).randint(2**31 - 1)
        batch = self.batch_size or min(max(BATCH, 2 ** round(math.log2(len(X) / BATCH))), 4 * BATCH)
        base = from_dict({"device": "cpu", "seed": int(seed), "optim": {"batch_size": int(batch)}})
        if self.method == "auto":
            self._choose(table, base)
        else:
            self._train_one(table, base)
        if self.converged_ is False:
            warnings.warn(
                f"LongTailClassifier was not trained to the end: the held-out loss still fell after {self.n_iter_:,} "
                f"steps. Pass a higher learning_rate, or max_iter={2 * self.n_iter_}.",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def _choose(self, table: Table, base: TrainConfig) -> None:
        """Cross-fit all candidates, choose one for the goal, and train it on all rows."""
        goal, width = Goal.parse(self.goal, self.keep), table.features.shape[1]
        crossed = CrossFit(table.labels, table.counts, make_folds(table.labels, self.folds, base.seed))
        if not crossed.judged.any():
            raise ValueError(
                "method='auto' chooses by rows that are held out, but every class of y has one row only; name a "
                "method, such as 'balanced-softmax', or give more rows."
            )
        ways = {
            way.title: way for way in (self._tuned(way, width) for way in trainings(width, None, len(table.labels)))
        }
        cross_fit(
            crossed, table, list(ways.values()), base, goal,
            ladder=None if self.max_iter is None else (self.max_iter,),
            done=lambda done, total: self._say(f"{done} of at most {total} heads are trained."),
        )  # fmt: skip
        chosen = choose_candidate(crossed, goal, next(iter(ways.values())), base.seed)
        if not chosen.choice.floor_met:
            warnings.warn(chosen.choice.note, UserWarning, stacklevel=3)
        self.scores_ = {"chosen": chosen.figures, "cross entropy": chosen.baseline}
        self.temperature_ = chosen.adjustment.temperature
        self.converged_ = chosen.fitted.converged if self.max_iter is None else None
        self.method_, self.shift_ = chosen.candidate.title, chosen.candidate.shift
        self._say(f"{self.method_} is trained on all rows. {chosen.choice.note}")
        way = chosen.candidate.training
        self._train(table, *_transformed(table, way), way.config(base), chosen.fitted.steps)

    def _train_one(self, table: Table, base: TrainConfig) -> None:
        """Find how long the method must be trained, on one fold, and train it on all rows."""
        if hasattr(self, "scores_"):
            del self.scores_  # of an earlier choice
        own = dict(self.options or {})
        settings = {name: own.pop(name) for name in ("car",) if name in own} | ({"options": own} if own else {})
        way = self._tuned(
            Training(self.method, "standard", 0.0, 0.0, self.method, 0, settings), table.features.shape[1]
        )
        config = way.config(base)
        transform, features = _transformed(table, way)
        self.method_, self.shift_, self.temperature_, self.converged_ = way.title, 0.0, 1.0, None
        steps = self.max_iter or UNJUDGED
        folds = make_folds(table.labels, self.folds, base.seed)
        if self.max_iter is None and (folds >= 0).any():
            known, out = np.flatnonzero(folds), np.flatnonzero(folds == 0)
            length = find_length(
                features[known], table.labels[known], table.names, config, (features[out], table.labels[out])
            )
            for tried, loss in length.losses.items():
                self._say(f"After {tried:,} steps the held-out loss is {loss:.4f}.")
            steps, self.converged_ = length.steps, length.converged
        self._train(table, transform, features, config, steps)

    def _train(
        self, table: Table, transform: nn.Module, features: torch.Tensor, config: TrainConfig, steps: int
    ) -> None:
        head = train_head(features, table.labels, table.names, config, steps)
        model = nn.Sequential(transform, head.method.inference(head.model))
        offsets = -self.shift_ * table.counts.frequencies.log()
        self.model_ = Adjusted(model, offsets, self.temperature_).double().eval().requires_grad_(False)
        self.n_iter_ = head.steps

    def _tuned(self, way: Training, columns: int) -> Training:
        """A candidate with what the caller has set, and a learning rate for as many columns as there are."""
        features = self.features or way.features
        rate = self.learning_rate or rate_for(features, columns)
        decay = way.decay if self.weight_decay is None else self.weight_decay
        return replace(way, features=features, lr=float(rate), decay=float(decay))

    def _say(self, text: str) -> None:
        if self.verbose:
            print(text)

    def _check_parameters(self) -> None:
        """Refuse what cannot work, in words."""
        Goal.parse(self.goal, self.keep)
        if self.method == "auto":
            if self.options:
                raise ValueError("options are those of one method; method='auto' tries several. Name a method.")
        elif self.goal != "balanced" or self.keep:
            raise ValueError(f"goal and keep are what method='auto' chooses for; leave them out with {self.method!r}.")
        elif not _is_one_loss(self.method):
            known = [name for name in METHODS if trains_on_arrays(name)]
            raise ValueError(
                f"method must be 'auto' or a single loss; got {self.method!r}: {nearest(self.method, known)}"
            )
        if self.features is not None:
            check_choice("features", self.features, KINDS)
        for name, limits in LIMITS.items():
            if getattr(self, name) is not None:
                limits.check(name, getattr(self, name))

    # -- prediction --

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Adjusted logits (N, K); with two classes, the lead of the second over the first, (N,)."""
        logits = self._logits(X)
        return logits[:, 1] - logits[:, 0] if len(self.classes_) == 2 else logits

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Probabilities (N, K) in the order of ``classes_``: the softmax of the adjusted logits."""
        return np.asarray(softmax(self._logits(X), axis=1))

    def predict(self, X: Any) -> NDArray[Any]:
        """The class of each row."""
        logits = self._logits(X)
        return np.asarray(self.classes_[logits.argmax(1)])

    def _logits(self, X: Any) -> NDArray[np.float64]:
        check_is_fitted(self)
        rows = torch.from_numpy(validate_data(self, X, dtype=np.float32, reset=False))
        with torch.no_grad():
            return torch.cat([self.model_(block.double()) for block in torch.split(rows, BLOCK)]).numpy()


def _is_one_loss(method: object) -> bool:
    """Of a method of someone else, ``package.module:Class``, the import says what is wrong."""
    return isinstance(method, str) and (":" in method or method in METHODS) and trains_on_arrays(method)


def _transformed(table: Table, way: Training) -> tuple[FeatureTransform, torch.Tensor]:
    given = torch.from_numpy(np.ascontiguousarray(table.features))
    with torch.no_grad():
        transform = FeatureTransform(way.features, given.shape[1]).fit_(given)
        return transform, transform(given)
