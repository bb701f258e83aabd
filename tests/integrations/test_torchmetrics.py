"""GroupAccuracy against torchmetrics' own accuracy, and in everything torchmetrics does with a metric."""

import copy
import pickle

import pytest
import torch
from toys import CLASSES, COUNTS

from spectail import ClassCounts
from spectail.integrations.torchmetrics import GroupAccuracy

from torchmetrics import MetricCollection  # isort: skip - after spectail.integrations
from torchmetrics.classification import MulticlassAccuracy  # isort: skip

LONG = [500, 120, 60, 30, 12, 4]  # two head, two medium, two tail classes


def batches(count=4, size=50):
    random = torch.Generator().manual_seed(3)
    return [
        (torch.randn(size, CLASSES, generator=random), torch.randint(CLASSES, (size,), generator=random))
        for _ in range(count)
    ]


def filled(metric, data):
    for scores, target in data:
        metric.update(scores, target)
    return metric


def oracle(data):
    """Accuracy per class and over samples, by torchmetrics."""
    classes = filled(MulticlassAccuracy(CLASSES, average=None), data).compute()
    return classes, filled(MulticlassAccuracy(CLASSES, average="micro"), data).compute()


def test_every_figure():
    classes, overall = oracle(batches())
    found = filled(GroupAccuracy(LONG), batches()).compute()
    wanted = {"overall": overall, "balanced": classes.mean(), "worst": classes.min(), "worst_class": classes.argmin()}
    wanted |= {"head": classes[:2].mean(), "medium": classes[2:4].mean(), "tail": classes[4:].mean()}
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert float(found[name]) == pytest.approx(float(value), abs=1e-6), name


def test_predicted_classes_count_as_scores_do_and_ignored_labels_do_not():
    scores, target = batches(1)[0]
    target[::7] = -100
    by_class = filled(GroupAccuracy(LONG), [(scores.argmax(1), target)])
    kept = target != -100
    wanted = filled(GroupAccuracy(LONG), [(scores[kept], target[kept])])
    assert by_class.compute() == wanted.compute()
    assert int(by_class.total.sum()) == int(kept.sum())


def test_classes_and_groups_without_a_sample_have_no_figure():
    metric = GroupAccuracy(LONG)
    metric.update(torch.tensor([0, 2, 2]), torch.tensor([0, 0, 2]))
    found = metric.compute()
    assert found["tail"].isnan()
    assert float(found["balanced"]) == pytest.approx(0.75)
    assert float(found["worst"]) == pytest.approx(0.5)
    assert int(found["worst_class"]) == 0
    assert float(found["overall"]) == pytest.approx(2 / 3)
    empty = GroupAccuracy(LONG)
    empty.update(torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.long))
    assert empty.compute()["worst"].isnan()
    assert int(empty.compute()["worst_class"]) == -1


def test_the_convention_decides_the_groups():
    counts = ClassCounts(COUNTS)
    metric = filled(GroupAccuracy(counts, convention="thirds"), batches())
    classes, _ = oracle(batches())
    groups = counts.groups("thirds")
    assert float(metric.compute()["tail"]) == pytest.approx(float(classes[groups["tail"]].mean()), abs=1e-6)


def test_forward_gives_the_batch_and_keeps_the_sum():
    metric = GroupAccuracy(LONG)
    for scores, target in batches():
        alone = filled(GroupAccuracy(LONG), [(scores, target)]).compute()
        assert metric(scores, target) == alone
    assert metric.compute() == filled(GroupAccuracy(LONG), batches()).compute()
    metric.reset()
    assert int(metric.total.sum()) == 0


def test_in_a_collection_with_others():
    collection = MetricCollection(
        {
            "groups": GroupAccuracy(LONG),
            "thirds": GroupAccuracy(LONG, "thirds"),
            "micro": MulticlassAccuracy(CLASSES, average="micro"),
        },
        prefix="val/",
    )
    for scores, target in batches():
        collection(scores, target)
    found = collection.compute()
    alone = {
        convention: filled(GroupAccuracy(LONG, convention), batches()).compute() for convention in ("count", "thirds")
    }
    assert float(found["val/micro"]) == pytest.approx(float(alone["count"]["overall"]), abs=1e-6)
    shown = {name.removeprefix("val/"): float(value) for name, value in found.items()}
    for key, convention in (("groups", "count"), ("thirds", "thirds")):
        assert shown[f"{key}_tail"] == float(alone[convention]["tail"])
        assert shown[f"{key}_worst"] == float(alone[convention]["worst"])
    collection.reset()
    assert all(int(metric.total.sum()) == 0 for name, metric in collection.items() if "micro" not in name)


def test_the_state_is_saved_and_restored():
    data = batches()
    metric = filled(GroupAccuracy(LONG), data[:2])
    assert not metric.state_dict()
    metric.persistent(True)
    again = GroupAccuracy(LONG)
    again.persistent(True)
    again.load_state_dict(copy.deepcopy(metric.state_dict()))
    assert filled(again, data[2:]).compute() == filled(GroupAccuracy(LONG), data).compute()
    assert pickle.loads(pickle.dumps(metric)).compute() == metric.compute()


@pytest.mark.parametrize(
    ("preds", "target", "message"),
    [
        (torch.zeros(3, 4), torch.zeros(3, dtype=torch.long), r"scores \(N, 6\); got \(3, 4\)"),
        (torch.zeros(3, 6), torch.zeros(3), r"target must be class indices of shape \(N,\)"),
        (torch.zeros(3), torch.zeros(3, dtype=torch.long), "preds must be class indices"),
        (torch.zeros(2, 6), torch.zeros(3, dtype=torch.long), "as many samples; got 2 and 3"),
        (torch.zeros(2, 6), torch.tensor([0, 6]), r"\[0, 6\) or equal ignore_index \(-100\); got 0 to 6"),
    ],
)
def test_mistakes_are_named(preds, target, message):
    metric = GroupAccuracy(LONG)
    with pytest.raises(ValueError, match=message):
        metric.update(preds, target)
    assert int(metric.total.sum()) == 0
