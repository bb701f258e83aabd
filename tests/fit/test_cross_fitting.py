"""Folds, heads that predict what they have not seen, the ladder of lengths, and the choice."""

import math
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from spectail.counts import ClassCounts
from spectail.data.folds import ALWAYS_TRAINED, make_folds
from spectail.experiments.task import Outcome
from spectail.fit.candidates import LOSSES, SHIFTS, Candidate, Training, shifted, trainings
from spectail.fit.choice import choose_candidate
from spectail.fit.crossfit import CrossFit, Fitted, HeadTask, Here, Table, cross_fit, ladder_for, prepared
from spectail.fit.goals import Goal, choose
from spectail.training import length
from spectail.training.config import TrainConfig
from spectail.training.heads import train_head, trains_on_arrays
from spectail.training.length import find_length

NAMES = ("cat", "dog", "owl", "elk")
SHORT = (10, 20)


def baseline():
    return trainings(6)[0]


def mixture(sizes=(60, 30, 8, 1), width=6, seed=0, apart=2.0):
    """Gaussian classes of these sizes."""
    random = np.random.default_rng(seed)
    centres = apart * random.standard_normal((len(sizes), width))
    labels = np.repeat(np.arange(len(sizes)), sizes)
    features = centres[labels] + random.standard_normal((len(labels), width))
    return Table(features.astype(np.float32), labels, NAMES[: len(sizes)])


def result_of(table, folds=3):
    return CrossFit(table.labels, table.counts, make_folds(table.labels, folds))


@pytest.mark.parametrize("sizes", [(60, 30, 8, 1), (2, 2, 2), (5, 1), (7, 3, 2, 2)])
@pytest.mark.parametrize("folds", [2, 5])
def test_folds_hold_every_image_out_once_and_leave_each_class_something_to_learn_from(sizes, folds):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    place = make_folds(labels, folds, seed=3)
    for label, size in enumerate(sizes):
        own = place[labels == label]
        if size == 1:
            assert own.tolist() == [ALWAYS_TRAINED]
            continue
        counts = np.bincount(own, minlength=folds)
        assert counts.max() - counts.min() <= 1
        assert all(size - counts[fold] >= 1 for fold in range(folds))
    assert (make_folds(labels, folds, seed=3) == place).all()


def test_no_head_has_seen_what_it_predicts():
    """A feature that gives the label away, but only for the image itself, helps nobody out of fold."""
    random = np.random.default_rng(0)
    labels = np.repeat([0, 1], 60)
    table = Table(np.eye(120, dtype=np.float32), random.permutation(labels), NAMES[:2])
    result = result_of(table, 4)
    cross_fit(result, table, [replace(baseline(), features="raw")], TrainConfig(), Goal(), ladder=(200,))
    (one,) = result.fitted.values()
    assert one.folds == result.used == (0, 1, 2, 3)
    right = one.logits.argmax(1) == table.labels
    assert right.mean() < 0.65
    head = train_head(torch.eye(120), table.labels, table.names, replace(TrainConfig(), seed=0), 400)
    assert (head.logits(torch.eye(120)).argmax(1).numpy() == table.labels).mean() == 1.0


def test_out_of_fold_logits_are_those_of_heads_trained_by_hand():
    table, one = mixture(), baseline()
    result = result_of(table)
    cross_fit(result, table, [one], TrainConfig(), Goal(), ladder=SHORT)
    fitted = result.fitted[one.title]
    features = prepared(table.features, one.features)
    for fold in result.used:
        known = result.folds != fold
        head = train_head(features[known], table.labels[known], table.names, one.config(TrainConfig()), fitted.steps)
        torch.testing.assert_close(
            torch.from_numpy(fitted.logits[~known]), head.logits(features[~known]), rtol=1e-4, atol=1e-5
        )
    assert np.isnan(fitted.logits[result.folds == ALWAYS_TRAINED]).all()


def test_the_first_look_keeps_the_best_third_and_cross_entropy():
    table = mixture()
    result = result_of(table, 4)
    seen = []
    cross_fit(result, table, trainings(6)[:6], TrainConfig(), Goal(), ladder=SHORT, done=lambda *at: seen.append(at))
    whole = {one.training.title for one in result.whole()}
    assert baseline().title in whole
    assert 2 <= len(whole) <= 3 < len(result.fitted) == 6
    assert seen[-1][0] <= seen[-1][1]


@pytest.mark.parametrize(
    ("rows", "names"),
    [(99, ["cross entropy"]), (100, ["cross entropy", "Balanced Softmax"]),
     (499, ["cross entropy", "Balanced Softmax"]), (500, [loss[0] for loss in LOSSES])],
)  # fmt: skip
def test_few_rows_have_few_losses_and_shorter_trainings(rows, names):
    assert list(dict.fromkeys(one.name for one in trainings(6, None, rows))) == names
    assert [one.name for one in trainings(6, ["ldam-drw"], rows)][::4][-1] == "LDAM-DRW"  # asked for
    lengths = ladder_for(rows)
    assert (lengths[0], lengths[-1]) == ((60, 500) if rows == 99 else (250, 2_000))


def test_candidates_with_car_are_long_enough_whatever_their_loss(monkeypatch):
    monkeypatch.setattr(length, "LEAST_WITH_CAR", 40)
    table = mixture(apart=0.0)  # nothing to learn, and that with large steps: the loss never falls
    result = result_of(table, 2)
    methods = ("ce", "balanced-softmax", "car", "car-worst")
    ways = [replace(next(one for one in trainings(6) if one.method == name), lr=3.0) for name in methods]
    cross_fit(result, table, ways, TrainConfig(), Goal(), ladder=(10, 20, 40))
    assert [result.fitted[one.title].steps for one in ways] == [10, 10, 40, 40]


def test_a_head_whose_process_died_is_trained_again_and_not_for_ever():
    class Deadly(Here):
        def __init__(self, deaths):
            self.deaths = deaths

        def carry_out(self, waiting, begun):
            for task, outcome in super().carry_out(waiting, begun):
                self.deaths -= 1
                yield task, outcome if self.deaths < 0 else Outcome("died", error="the node was lost")

    table = mixture()
    whole, again, lost = (result_of(table) for _ in range(3))
    for result, engine in ((whole, None), (again, Deadly(2))):
        cross_fit(result, table, [baseline()], TrainConfig(), Goal(), ladder=SHORT, engine=engine)
    np.testing.assert_array_equal(again.fitted[baseline().title].logits, whole.fitted[baseline().title].logits)
    with pytest.raises(ValueError, match="cross entropy, standard failed: the node was lost"):
        cross_fit(lost, table, [baseline()], TrainConfig(), Goal(), ladder=SHORT, engine=Deadly(3))


def test_classes_of_one_size_have_no_prior_to_shift_by():
    for sizes, number in (((6, 6, 6), 1), ((6, 6, 5), len(SHIFTS))):
        table = mixture(sizes)
        result = fake(result_of(table), [(baseline(), np.eye(3, dtype=np.float32)[table.labels])])
        assert len(result.candidates()[0]) == number


def test_a_deadline_leaves_cross_entropy_which_is_finished_first():
    table = mixture()
    result = result_of(table, 4)
    cross_fit(result, table, trainings(6)[:3], TrainConfig(), Goal(), ladder=SHORT, deadline=time.monotonic() - 1)
    assert result.out_of_time
    assert [one.training for one in result.whole()] == [baseline()]
    assert choose_candidate(result, Goal(), baseline()).candidate.training == baseline()
    nothing = result_of(table, 4)
    with pytest.raises(ValueError, match="no candidate has predicted all images"):
        choose_candidate(nothing, Goal(), baseline())


def test_a_shift_is_the_log_prior():
    counts = ClassCounts([90, 10])
    logits = np.array([[1.0, 0.0]])
    assert shifted(logits, 1.0, counts) - logits == pytest.approx(-np.log([[0.9, 0.1]]))
    assert shifted(logits, 0.0, counts) is logits


@pytest.mark.parametrize("method", sorted({loss[1] for loss in LOSSES}))
def test_every_candidate_is_a_method_that_trains_on_arrays(method):
    assert trains_on_arrays(method)


def test_methods_with_stages_streams_or_images_do_not_train_on_arrays():
    assert not any(map(trains_on_arrays, ("crt", "bbn", "cmo", "metasaug", "balms")))


def fake(result, rows):
    """A result in which trainings predicted ``rows`` of logits."""
    for training, logits in rows:
        result.fitted[training.title] = Fitted(training, logits, 10, {10: 1.0}, True, result.used)
    return result


def smooth_accuracy(logits, labels):
    """Mean over classes of sigmoid(2 lead sqrt(n) / median lead), image by image."""
    lead = [row[label] - max(np.delete(row, label)) for row, label in zip(logits.tolist(), labels, strict=True)]
    usual = float(np.median(np.abs(lead)))
    shares = {}
    for one, label in zip(lead, labels.tolist(), strict=True):
        shares.setdefault(label, []).append(1 / (1 + math.exp(-2 * one * math.sqrt(np.sum(labels == label)) / usual)))
    return float(np.mean([np.mean(own) for own in shares.values()]))


def test_the_choice_is_the_simplest_within_an_error_and_its_gain_has_an_interval():
    """Two trainings that differ in nothing: the simpler one is taken, with the shift that undoes the prior."""
    random = np.random.default_rng(0)
    labels = np.repeat([0, 1], [400, 40])
    table = Table(np.zeros((440, 2), np.float32), labels, NAMES[:2])
    result = result_of(table, 4)
    score = np.where(labels == 1, 1.0, -1.0) + random.standard_normal(440)
    logits = np.stack([np.log(10) + 0 * score, 2 * score], 1).astype(np.float32)  # trained under the prior 10 : 1
    plain, other = baseline(), Training("other", "raw", 1e-3, 0.0, "car", 3)
    fake(result, [(plain, logits), (other, logits)])
    chosen = choose_candidate(result, Goal("balanced"), plain)
    assert chosen.candidate.training == plain
    assert chosen.candidate.shift == pytest.approx(1.0, abs=0.3)
    assert chosen.adjustment.tau == chosen.candidate.shift
    by_hand, smooth = {}, {}
    for shift in SHIFTS:
        right = shifted(logits, shift, result.counts).argmax(1) == labels
        by_hand[shift] = 50 * (right[labels == 0].mean() + right[labels == 1].mean())
        smooth[shift] = smooth_accuracy(shifted(logits, shift, result.counts), labels)
    assert chosen.candidate.shift == max(smooth, key=smooth.get)
    assert chosen.figures["balanced"] == pytest.approx(by_hand[chosen.candidate.shift])  # right or wrong, nothing else
    gain = chosen.differences["balanced"]
    assert gain.value == pytest.approx(by_hand[chosen.candidate.shift] - by_hand[0.0])
    assert gain.low < gain.value < gain.high
    assert gain.clear
    assert gain.value > 0
    assert chosen.differences["overall"].value <= 0
    overall = choose_candidate(result, Goal("overall"), plain)
    assert overall.candidate.training == plain
    assert overall.candidate.shift == pytest.approx(0.0, abs=0.21)


def test_a_floor_is_kept_or_the_nearest_taken():
    labels = np.repeat([0, 1], [400, 40])
    table = Table(np.zeros((440, 2), np.float32), labels, NAMES[:2])
    result = result_of(table, 4)
    score = np.where(labels == 1, 1.0, -1.0) + np.random.default_rng(0).standard_normal(440)
    fake(result, [(baseline(), np.stack([np.log(10) + 0 * score, 2 * score], 1).astype(np.float32))])
    kept = choose_candidate(result, Goal("balanced", (("overall", 93.0),)), baseline())
    assert kept.choice.floor_met
    assert kept.figures["overall"] >= 93
    impossible = choose_candidate(result, Goal("balanced", (("overall", 99.9),)), baseline())
    assert not impossible.choice.floor_met
    assert "No candidate keeps the floor" in impossible.choice.note


def test_a_shift_is_no_reason_to_prefer_a_candidate_without():
    for one in trainings(6):
        assert Candidate(one, 0.5).simplicity == Candidate(one, 0.0).simplicity
    assert [one.simplicity for one in trainings(6)] == sorted(one.simplicity for one in trainings(6))


def test_the_ladder_stops_where_longer_is_no_better_or_says_that_it_did_not():
    table = mixture(sizes=(60, 60, 60, 60), apart=0.3)  # much noise: a long training only learns that
    features = prepared(table.features, "standard")
    place = make_folds(table.labels, 3)
    known = place != 0
    config = replace(TrainConfig(), optim=replace(TrainConfig().optim, lr=0.05, weight_decay=0.0))
    held = (features[~known], table.labels[~known])
    found = find_length(features[known], table.labels[known], table.names, config, held, ladder=(20, 40, 80, 160, 320))
    assert found.converged
    tried = list(found.losses)
    assert found.steps == tried[-2]
    assert found.losses[tried[-1]] >= found.losses[tried[-2]] * 0.99 - 1e-9
    slow = replace(config, optim=replace(config.optim, lr=1e-4))
    found = find_length(features[known], table.labels[known], table.names, slow, held, ladder=(2, 40))
    assert not found.converged or found.losses[40] >= found.losses[2] * 0.99 - 0.005


def test_a_task_can_be_sent_to_another_process():
    import pickle

    table = mixture()
    task = HeadTask("x", baseline(), TrainConfig(), table, make_folds(table.labels, 3), (0,), ladder=SHORT)
    here, there = task.carry_out(), pickle.loads(pickle.dumps(task)).carry_out()
    assert (here.results["logits"][0] == there.results["logits"][0]).all()


def test_among_equally_simple_candidates_the_best_is_taken_even_if_only_a_worse_one_is_within_an_error():
    """Its error is smaller, because it differs from the best in fewer draws."""
    scores = np.array([98.0, 99.0, 99.5])
    draws = np.array([[97.0, 99.4, 99.9], [99.5, 98.6, 99.1]])  # differences of -2.9 and 0.4; both -0.5
    assert choose(Goal(), scores, draws, [0, 0, 1]).index == 1
