"""Metrics on ranks, each of which has a part of the data."""

import torch.distributed as dist

from spectail.metrics import Metrics


def measure(parts, counts):
    metrics = Metrics(counts)
    metrics.update(*parts[dist.get_rank()])
    metrics.sync()
    return metrics.compute()
