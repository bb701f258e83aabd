"""Heads on features in memory: the same as an ordinary run, whatever the method, and a length that is long enough."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from training.rank_runs import head_alone
from training.runs import settings

from spectail.cli.train import parse
from spectail.data.folds import make_folds
from spectail.data.longtail import hold_out
from spectail.methods.registry import METHODS
from spectail.models.feature_transform import FeatureTransform
from spectail.training import length as heads
from spectail.training.build import make_pieces
from spectail.training.config import OptimConfig
from spectail.training.config_io import from_dict, read_yaml
from spectail.training.head_settings import with_head_settings
from spectail.training.heads import train_head, trains_on_arrays
from spectail.training.length import find_length, least_steps, with_length
from spectail.training.loop import train
from spectail.training.reporter import Reporter

ON_ARRAYS = [name for name in METHODS if trains_on_arrays(name)]


def rows(counts, width=6, seed=0, gap=1.0):
    random = np.random.default_rng(seed)
    means = random.normal(size=(len(counts), width)) * gap
    labels = np.repeat(np.arange(len(counts)), counts)
    features = means[labels] + random.normal(size=(len(labels), width))
    return torch.from_numpy(features.astype(np.float32)), labels


def names_of(number):
    return [str(label) for label in range(number)]


def config_of(method="ce", batch=16, lr=0.02, decay=0.0, **more):
    optim = {"batch_size": batch, "lr": lr, "weight_decay": decay}
    return from_dict({"method": method, "device": "cpu", "optim": optim, **more})


@pytest.mark.parametrize("method", ["ce", "car-balanced", "ldam-drw"])
def test_a_head_is_that_of_an_ordinary_run(tmp_path, method):
    config = settings(tmp_path / "run", probe=True, method=method, optim__epochs=3)
    train(config)
    with np.load(tmp_path / "run" / "predictions.npz") as file:
        saved = file["logits"]
    splits = make_pieces(config, Reporter()).splits
    labels = np.asarray(splits["train"].labels, dtype=np.int64)
    head = train_head(torch.as_tensor(splits["train"].features), labels, names_of(6), config, steps=15)
    assert head.steps == 15
    found = head.logits(torch.as_tensor(splits["test"].features)).numpy()
    np.testing.assert_allclose(found, saved, atol=2e-3, rtol=1e-3)
    start = train_head(torch.as_tensor(splits["train"].features), labels, names_of(6), config, steps=5)
    other = start.logits(torch.as_tensor(splits["test"].features)).numpy()
    assert np.abs(other - saved).max() > 0.02  # so close they are not by chance


@pytest.mark.parametrize("method", ON_ARRAYS)
def test_every_method_of_one_loss_learns(method):
    features, labels = rows([60, 20, 8, 2], gap=3.0)
    head = train_head(features, labels, names_of(4), config_of(method), 180)
    found = head.logits(features).argmax(1).numpy()
    assert head.logits(features[:0]).shape == (0, 4)
    assert np.mean([np.mean(found[labels == label] == label) for label in range(3)]) > 0.8
    assert np.isfinite(head.loss(features, torch.from_numpy(labels)))


def test_methods_with_stages_or_images_do_not_train_on_arrays():
    assert not {"bbn", "balms", "crt", "cmo", "concutmix"} & {*ON_ARRAYS}
    assert {"ce", "balanced-softmax", "ldam-drw", "car", "car-balanced"} <= {*ON_ARRAYS}


def test_the_loss_is_the_methods_own():
    features, labels = rows([40, 10, 3])
    known = torch.from_numpy(labels)
    plain = train_head(features, labels, names_of(3), config_of("ce"), 20)
    assert plain.loss(features, known) == pytest.approx(float(F.cross_entropy(plain.logits(features), known)), rel=1e-5)
    margins = train_head(features, labels, names_of(3), config_of("ldam-drw", options={"defer": "none"}), 20)
    cosines = margins.logits(features) / 30
    wanted = margins.method.criterion(cosines, known)
    assert margins.loss(features, known) == pytest.approx(float(wanted), rel=1e-5)


def test_a_long_training_finds_the_minimum_of_a_convex_loss():
    features, labels = rows([40, 30, 30], gap=0.3)
    known, weights = torch.from_numpy(labels), torch.zeros(3, 7, requires_grad=True)
    best = torch.optim.LBFGS([weights], max_iter=500, line_search_fn="strong_wolfe")

    def cost():
        best.zero_grad()
        value = F.cross_entropy(features @ weights[:, 1:].T + weights[:, 0], known)
        value.backward()
        return value

    best.step(cost)
    head = train_head(features, labels, names_of(3), config_of(batch=100), 2_000)
    assert head.loss(features, known) == pytest.approx(cost().item(), rel=2e-3)


def test_a_class_without_rows_is_never_predicted():
    features, labels = rows([30, 10])
    head = train_head(features, labels, names_of(3), config_of(), 100)
    logits = head.logits(features)
    assert logits.shape == (40, 3)
    assert not (logits.argmax(1) == 2).any()


def test_class_balanced_sampling_lifts_the_rare_class():
    features, labels = rows([300, 6], gap=0.6, seed=1)
    resampled = {"options": {"defer": "resample", "defer_at": 0.0}}
    plain, lifted = (
        train_head(features, labels, names_of(2), config_of(lr=0.05, batch=32, **more), 400) for more in ({}, resampled)
    )
    shares = [float((head.logits(features).argmax(1) == 1).float().mean()) for head in (plain, lifted)]
    assert shares[1] > shares[0] + 0.1


def test_the_seed_says_everything_and_the_callers_numbers_stay():
    features, labels = rows([30, 10])
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    first = train_head(features, labels, names_of(2), config_of(), 30).logits(features)
    assert torch.equal(torch.rand(3), wanted)
    assert torch.equal(first, train_head(features, labels, names_of(2), config_of(), 30).logits(features))
    assert not torch.equal(first, train_head(features, labels, names_of(2), config_of(seed=1), 30).logits(features))


def losses_by_length(monkeypatch, losses):
    """Stand-ins whose held-out loss is given; the lengths that were asked for."""
    asked = []

    class Stub:
        def __init__(self, steps):
            self.steps = steps  # those that were asked for: the batches of these tests hold all images

        def loss(self, features, labels):
            return losses[self.steps]

    def trained(features, labels, names, config, steps):
        asked.append(steps)
        return Stub(steps)

    monkeypatch.setattr(heads, "train_head", trained)
    return asked


@pytest.mark.parametrize(
    ("losses", "steps", "converged"),
    [
        ([1.0, 0.8, 0.793, 0.1], 20, True),  # it stops where twice as long is no better
        ([1.0, 1.1, 0.5, 0.1], 10, True),
        ([1.0, 0.8, 0.7, 0.6], 80, False),  # the ladder ends
        ([1.0, 0.02, 0.016, 0.0], 20, True),  # a fifth less, but of next to nothing
        ([1.0, float("nan"), 0.7, 0.6], 10, True),
    ],
)
def test_the_ladder_stops_where_twice_as_long_is_no_better(monkeypatch, losses, steps, converged):
    ladder = (10, 20, 40, 80)
    asked = losses_by_length(monkeypatch, dict(zip(ladder, losses, strict=True)))
    features, labels = rows([400, 300])
    found = find_length(features, labels, names_of(2), config_of(batch=700), (features, labels), ladder=ladder)
    assert (found.steps, found.converged, found.head.steps) == (steps, converged, steps)
    tried = ladder[: ladder.index(steps) + (2 if converged else 1)]
    assert tuple(asked) == tuple(found.losses) == tried


@pytest.mark.parametrize(("images", "steps"), [(625, 40), (100, 20)])
def test_a_small_fall_counts_only_where_many_images_tell_it(monkeypatch, images, steps):
    """Two percent: twice what 625 images need, and less than the 2.5 percent that 100 do."""
    losses_by_length(monkeypatch, {10: 1.0, 20: 0.8, 40: 0.784, 80: 0.784})
    features, labels = rows([images - 50, 50])
    config = config_of(batch=700)
    found = find_length(features, labels, names_of(2), config, (features, labels), ladder=(10, 20, 40, 80))
    assert (found.steps, found.converged) == (steps, True)


@pytest.mark.parametrize(
    ("losses", "steps"),
    [
        ([1.0, 1.0, 0.5, 0.1, 0.1], 1_000),  # flat from the beginning
        ([1.0, 0.8, 0.8, 0.1, 0.1], 1_000),
        ([1.0, 0.8, 0.6, 0.4, 0.4], 2_000),
    ],
)
def test_a_least_length_is_kept_where_the_ladder_has_it(monkeypatch, losses, steps):
    ladder = (250, 500, 1_000, 2_000, 4_000)
    losses_by_length(monkeypatch, dict(zip(ladder, losses, strict=True)))
    features, labels = rows([400, 300])
    config = config_of(batch=700)
    for tried, wanted in ((ladder, steps), (ladder[:2], 500)):
        found = find_length(features, labels, names_of(2), config, (features, labels), ladder=tried, least=1_000)
        assert (found.steps, found.head.steps) == (wanted, wanted)
        assert found.converged is (wanted != 500 or losses[1] == 1.0)


def test_car_has_a_least_length():
    settings = [{"method": "ce"}, {"method": "car-worst"}, {"method": "car"}, {"car": {"enabled": True}}]
    assert [least_steps(from_dict(one)) for one in settings] == [0, 1_000, 1_000, 1_000]


def test_the_length_of_real_trainings():
    features, labels = rows([60, 30, 10])
    unseen = rows([30, 30, 30], seed=0)
    found = find_length(features, labels, names_of(3), config_of(), unseen, ladder=(10, 40, 160, 640, 2560))
    assert found.converged
    assert 10 < found.steps < 2560
    assert found.losses[found.steps] == min(found.losses.values())
    assert found.head.loss(unseen[0], torch.from_numpy(unseen[1])) == pytest.approx(found.losses[found.steps])


def test_a_fair_probe_finds_its_features_and_goes_on_with_them(tmp_path, monkeypatch):
    """Columns of which only the roots are worth learning from: projected wins, is written down, and resumes."""
    monkeypatch.setattr(heads, "LADDER", (40, 80))
    monkeypatch.setitem(heads.find_length.__kwdefaults__, "ladder", (40, 80))
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), [120, 60, 30, 15])
    centres = 3 * random.standard_normal((4, 6))
    values = centres[labels] + random.standard_normal((len(labels), 6))
    values = np.sign(values) * np.abs(values) ** 6  # a few rows drown all others
    np.savez(tmp_path / "x.npz", X=values.astype(np.float32), y=labels)
    flags = ["--dataset", f"features:{tmp_path / 'x.npz'}", "--device", "cpu", "--output", str(tmp_path / "run")]
    config, _ = parse(flags)
    results = train(config)
    saved = read_yaml(tmp_path / "run" / "config.yaml")
    assert saved.features == "projected"
    assert saved.optim.lr == pytest.approx(0.15 / 6**0.5)
    assert saved.optim.epochs > 1
    assert train(config, resume=True) == results
    with pytest.raises(ValueError, match=r"--features auto chooses --lr and --weight-decay too"):
        train(parse([*flags[:-1], str(tmp_path / "other"), "--lr", "0.5"])[0])


def test_a_length_is_found_where_nothing_can_be_held_out():
    """One row of each class: the loss of no rows says nothing, and the shortest length is taken."""
    features, labels = rows([1, 1, 1])
    found = find_length(features, labels, names_of(3), config_of(), (features[:0], labels[:0]), ladder=(4, 8, 16))
    assert found.steps == found.head.steps == 4
    assert not found.converged  # nobody knows


def test_two_lengths_of_a_long_epoch_are_not_the_same_training():
    """Both 5 and 10 steps are one epoch of 100: twice as long is another epoch."""
    features, labels = rows([60, 40])
    config = config_of(batch=1, lr=1e-4)
    found = find_length(features, labels, names_of(2), config, (features, labels), ladder=(5, 10))
    assert list(found.losses) == [100, 200]
    assert found.losses[100] != found.losses[200]
    (one,) = find_length(features, labels, names_of(2), config, (features, labels), ladder=(5,)).losses
    assert one == 100


@pytest.mark.parametrize("batch", [6, 7, 16, 50])
def test_a_run_passes_over_its_images_as_often_as_the_head_that_was_judged(tmp_path, batch):
    features, labels = rows([90, 60, 30, 20])
    np.savez(tmp_path / "x.npz", X=features.numpy(), y=labels)
    flags = ["--dataset", f"features:{tmp_path / 'x.npz'}", "--features", "raw", "--lr", "0.01", "--device", "cpu"]
    config = parse([*flags, "--batch-size", str(batch), "--output", str(tmp_path / "run")])[0]
    whole, found = with_length(config, None, Reporter())
    table = make_pieces(whole, Reporter()).splits["train"]
    held = hold_out(table.labels, table.names, fraction=0.2, seed=config.seed)
    judged = found["steps"] / -(-int((~held).sum()) // batch)
    assert judged == int(judged)
    assert found["epochs"] == whole.optim.epochs == pytest.approx(judged, rel=0.2)


def test_the_choice_of_features_does_not_hang_on_the_method(tmp_path, monkeypatch):
    config = fair_probe(tmp_path, monkeypatch, (20, 40))
    ways = [{"method": "ce"}, {"method": "balanced-softmax", "options": {"tau": 0.25, "defer": "reweight"}},
            {"method": "car-worst"}]  # fmt: skip
    first, *others = (with_head_settings(from_dict(way, config), None, Reporter())[1] for way in ways)
    assert others == [first, first]
    with pytest.raises(ValueError, match="--features auto chooses a learning rate for AdamW; got --optimizer sgd"):
        with_head_settings(from_dict({"optim": {"optimizer": "sgd"}}, config), None, Reporter())


@pytest.mark.parametrize("method", ["car-worst", "car-balanced", "cb", "safa-r"])
def test_ranks_that_look_for_a_length_do_not_wait_for_each_other(ranks, method):
    """Each trains the same head, one of them for longer."""
    first, second = ranks(head_alone, method, timeout=60)
    assert first == second


def fair_probe(tmp_path, monkeypatch, ladder):
    """A fair probe of rows that no short ladder is long enough for, without its results: as if it had been stopped."""
    monkeypatch.setattr(heads, "LADDER", ladder)
    monkeypatch.setitem(heads.find_length.__kwdefaults__, "ladder", ladder)
    features, labels = rows([80, 40, 20, 10], gap=2.0)
    np.savez(tmp_path / "x.npz", X=features.numpy(), y=labels)
    flags = ["--dataset", f"features:{tmp_path / 'x.npz'}", "--device", "cpu", "--output", str(tmp_path / "run")]
    return parse(flags)[0]


def test_a_probe_that_did_not_come_to_its_end_says_so_when_it_is_resumed(tmp_path, monkeypatch):
    config = fair_probe(tmp_path, monkeypatch, (2, 4))
    whole = train(config)
    assert whole["disclosures"]["length"].startswith("not trained to the end")
    (tmp_path / "run" / "results.json").unlink()
    again = train(config, resume=True)
    assert again["disclosures"] == whole["disclosures"]
    assert again["choices"] == whole["choices"]


def test_what_was_chosen_is_the_least_of_what_was_tried(tmp_path, monkeypatch):
    """Each candidate by the loss of heads that have not seen the image, here computed again with a loop of its own."""
    config = fair_probe(tmp_path, monkeypatch, (40, 80))
    found = train(config)["choices"]
    losses = found["head"]["losses"]
    assert len(losses) == 4
    best = min(losses, key=losses.get)
    assert best == f"{found['head']['features']}, decay {found['head']['optim']['weight_decay']:g}"
    assert set(found["length"]["losses"]) == {"40", "80"}
    data = make_pieces(from_dict({"features": "raw", "optim": {"epochs": 1}}, config), Reporter()).splits["train"]
    values = FeatureTransform("standard", 6).fit_(data.features)(data.features)
    place, total = make_folds(data.labels, 5, config.seed), np.zeros(4)
    way = from_dict(
        {"method": "balanced-softmax", "optim": {"lr": 0.15 / 6**0.5, "weight_decay": 1.0, "epochs": 1}}, config
    )
    steps = None
    for fold in range(5):
        known, out = place != fold, place == fold
        inside = (values[torch.from_numpy(known)], data.labels[known], data.names, way)
        unseen = values[torch.from_numpy(out)]
        steps = steps or find_length(*inside, (unseen, data.labels[out])).steps
        chances = train_head(*inside, steps).logits(unseen).double().log_softmax(1).numpy()
        np.subtract.at(total, data.labels[out], chances[np.arange(out.sum()), data.labels[out]])
    assert (total / np.bincount(data.labels)).mean() == pytest.approx(losses["standard, decay 1"], rel=1e-6)


def test_rate_and_decay_that_nobody_gave_are_chosen(tmp_path, monkeypatch):
    """Without the preset, `--probe --features auto` begins with the usual rate and decay of a network."""
    monkeypatch.setattr(heads, "LADDER", (2, 4))
    monkeypatch.setitem(heads.find_length.__kwdefaults__, "ladder", (2, 4))
    config = settings(tmp_path / "run", probe=True, features="auto", optim__epochs=2)
    untold = OptimConfig()
    optim = replace(config.optim, lr=untold.lr, weight_decay=untold.weight_decay)
    assert train(replace(config, optim=optim))["choices"]["head"]["features"] in ("standard", "projected")
