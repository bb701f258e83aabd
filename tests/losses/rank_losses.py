"""The gradient that ragged ranks average to, for every loss and kind of labels.

``gradient(case, range(8))`` is the same case in one process. Every case is one linear layer in
float64 on 8 images, of which the first rank holds 5 and the second 3.
"""

import torch
import torch.distributed as dist
from torch import nn

from spectail import MixedTarget
from spectail.losses import (
    BalancedSoftmaxLoss,
    ClassBalancedLoss,
    CrossEntropyLoss,
    FocalLoss,
    GeometricMeanLoss,
    LabelOverSmoothLoss,
    LDAMLoss,
)

COUNTS = [100, 20, 5, 2]
WEIGHT = [0.25, 1.0, 2.0, 4.0]
IMAGES, FIRST = 8, 5
MAKERS = {
    "cross-entropy": CrossEntropyLoss,
    "cross-entropy-terms": lambda **options: CrossEntropyLoss(average="terms", **options),
    "focal": lambda **options: FocalLoss(2.0, **options),
    "sigmoid": lambda **options: FocalLoss(1.0, form="sigmoid", **options),
    "balanced": lambda **options: BalancedSoftmaxLoss(COUNTS, **options),
    "class-balanced": lambda **options: ClassBalancedLoss(COUNTS, **options),
    "class-balanced-torch": lambda **options: ClassBalancedLoss(COUNTS, average="weights", **options),
    "ldam": lambda **options: LDAMLoss(COUNTS, scale=5.0, **options),
    "over-smooth": LabelOverSmoothLoss,
    "geometric": lambda **options: GeometricMeanLoss(COUNTS, **options),
    "geometric-all": lambda **options: GeometricMeanLoss(COUNTS, divide="all", **options),
}
LABELS = {
    "hard": [0, 1, 0, 2, 0, 3, 2, 1],
    "apart": [0, 0, 0, 0, 0, 3, 3, 1],  # no class on both ranks
    "ignored": [0, -100, 0, 2, 0, -100, 2, 3],
    "ignored-rank": [0, 1, 0, 2, 0, -100, -100, -100],
}
THOROUGH = ("cross-entropy", "class-balanced-torch", "geometric")  # no weights, own weights, a loss of the whole batch
IGNORING = ("geometric",)  # the losses that are exact however many labels each rank ignores
NOTHING = ("ignored", "ignored-rank")
KINDS = ("hard", "apart", "soft", "mixed")
CASES = [
    *((loss, labels, weighted) for loss in THOROUGH for labels in KINDS for weighted in (False, True)),
    *((loss, labels, weighted) for loss in IGNORING for labels in NOTHING for weighted in (False, True)),
    *((loss, "hard", True) for loss in MAKERS if loss not in THOROUGH),
    ("cross-entropy-terms", "mixed", True),
]
ALONE = [("class-balanced-torch", "hard", True), ("geometric", "hard", False)]  # without sync: must not come out right


def target_of(labels, rows):
    hard = torch.tensor(LABELS.get(labels, LABELS["hard"]))
    if labels == "soft":
        draw = torch.Generator().manual_seed(2)
        return (3 * torch.randn(IMAGES, 4, generator=draw, dtype=torch.float64)).softmax(1)[rows]
    if labels == "mixed":
        lam = torch.linspace(0, 1, IMAGES, dtype=torch.float64)
        return MixedTarget(hard[rows], hard.roll(3)[rows], lam[rows])
    return hard[rows]


def gradient(case, rows, sync=True):
    """The loss that is back-propagated and the gradient of the layer, averaged over ranks if there are any."""
    name, labels, weighted = case
    draw = torch.Generator().manual_seed(1)
    features = torch.randn(IMAGES, 6, generator=draw, dtype=torch.float64)
    layer = nn.Linear(6, 4, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(4, 6, generator=draw, dtype=torch.float64))
        layer.bias.zero_()
    loss = MAKERS[name](weight=WEIGHT if weighted else None)
    loss.sync = sync
    rows = list(rows)
    world = dist.get_world_size() if dist.is_initialized() else 1
    model = nn.parallel.DistributedDataParallel(layer) if world > 1 else layer
    # what the training loop multiplies with: the geometric mean already belongs to the batch of all ranks
    share = 1.0 if isinstance(loss, GeometricMeanLoss) else len(rows) * world / IMAGES
    value = loss(model(features[rows]), target_of(labels, rows)) * share
    value.backward()
    return value.detach(), torch.cat([layer.weight.grad.flatten(), layer.bias.grad])


def gradients():
    """Of every case, on a rank."""
    rows = range(FIRST) if dist.get_rank() == 0 else range(FIRST, IMAGES)
    return {case: gradient(case, rows) for case in CASES} | {
        ("alone", *case): gradient(case, rows, sync=False) for case in ALONE
    }
