"""CAR in other people's training loops. One module per framework, imported by name and only then:

- :mod:`spectail.integrations.huggingface`: ``LossFunction`` for ``Trainer(compute_loss_func=...)``, ``GroupMetrics``;
- :mod:`spectail.integrations.lightning`: ``ConfusionMonitor``, a callback;
- :mod:`spectail.integrations.torchmetrics`: ``GroupAccuracy``, a metric;
- :mod:`spectail.integrations.timm`: ``StatefulTask``, whose checkpoints hold the state of the loss.

A plain loop, DDP and Accelerate need none of them: see ``examples/``. The frameworks come with
``pip install '.[integrations]'`` from a clone.
"""

from .._utils import torchvision_ops  # noqa: F401 - these frameworks import torchvision, which may not fit a CPU-only torch
