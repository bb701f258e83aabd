"""Metrics on a GPU without float64: the same figures as on the CPU, bit for bit."""

import pytest
import torch
import torch.distributed as dist
from apple import MPS, AppleGPU
from toys import CLASSES, COUNTS

from spectail.integrations.lightning import ConfusionMonitor
from spectail.integrations.torchmetrics import GroupAccuracy
from spectail.metrics import Metrics


@pytest.fixture
def apple():
    with AppleGPU():
        yield MPS


def batches():
    random = torch.Generator().manual_seed(5)
    return [
        (torch.randn(40, CLASSES, generator=random), torch.randint(CLASSES, (40,), generator=random)) for _ in range(3)
    ]


def filled(metric, device=None):
    for scores, target in batches():
        metric.update(scores.to(device), target.to(device))
    return metric


def test_the_stand_in_refuses_what_an_apple_gpu_refuses(apple):
    tensor = torch.ones(3, device=apple)
    assert tensor.device == apple
    assert float((tensor + 1).sum()) == 6
    assert (tensor + 1).cpu().tolist() == [2, 2, 2]
    for wrong in (tensor.double, lambda: torch.ones(2, dtype=torch.float64).to(apple)):
        with pytest.raises(TypeError, match="no float64"):
            wrong()
    with pytest.raises(RuntimeError, match="one device"):
        tensor + torch.ones(3)
    whole = torch.zeros(3, dtype=torch.int64).to(apple)
    with pytest.raises(RuntimeError, match="int64"):
        whole.index_add_(0, whole, whole)


def test_metrics_stay_on_the_cpu_and_count_what_comes_from_the_gpu(apple):
    metrics = Metrics(COUNTS)
    assert metrics.to(apple) is metrics
    assert {state.device.type for state in metrics.buffers()} == {"cpu"}
    assert filled(metrics, apple).compute() == filled(Metrics(COUNTS)).compute()
    inside = torch.nn.Sequential(torch.nn.Linear(2, 2), Metrics(COUNTS)).to(apple)
    assert inside[0].weight.device == apple
    assert inside[1].bins.dtype == torch.float64


def test_their_state_can_be_summed_over_processes(apple):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        metrics = filled(Metrics(COUNTS).to(apple), apple)
        metrics.sync()
    finally:
        dist.destroy_process_group()
    assert metrics.compute() == filled(Metrics(COUNTS)).compute()


def test_other_moves_and_casts_are_what_they_were():
    metrics = Metrics(COUNTS).to("meta")
    assert {state.device.type for state in metrics.buffers()} == {"meta"}
    assert Metrics(COUNTS).float().bins.dtype == torch.float32


def test_group_accuracy(apple):
    metric = GroupAccuracy(COUNTS).to(apple)
    assert metric.total.device == apple
    found, wanted = filled(metric, apple).compute(), filled(GroupAccuracy(COUNTS)).compute()
    assert metric.total.device == apple
    for name, value in wanted.items():
        assert found[name].device == apple
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name].cpu(), value) or value.isnan(), name
    metric.reset()
    assert int(metric.total.sum()) == 0


def test_the_callback_of_lightning(apple):
    """What Lightning calls at validation, with a module on the GPU."""

    class Module:
        device, logged = apple, {}

        def log_dict(self, figures, **options):
            self.logged.update(figures)

    class Trainer:
        sanity_checking = False

    monitor, module = ConfusionMonitor(COUNTS, singular_values=2), Module()
    monitor.on_validation_epoch_start(Trainer(), module)
    for number, (scores, target) in enumerate(batches()):
        outputs = {"logits": scores.to(apple), "target": target.to(apple)}
        monitor.on_validation_batch_end(Trainer(), module, outputs, None, number)
    monitor.on_validation_epoch_end(Trainer(), module)
    wanted = filled(Metrics(COUNTS)).compute()
    assert module.logged["val/worst"] == wanted["worst_test"]
    assert module.logged["val/spectral_norm"] == wanted["spectral_norm"]
    assert module.logged["val/singular_value_1"] == pytest.approx(wanted["spectral_norm"], rel=1e-9)
