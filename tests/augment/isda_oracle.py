"""ISDA written as loops, and problems for it."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from spectail.augment.isda import quadratic_forms

KINDS = pytest.mark.parametrize("kind", ["full", "diagonal"])
D = torch.float64
W = torch.tensor([[1, 0], [0, 1], [-1, -1]], dtype=D)
H, Y = torch.tensor([[1, 2]], dtype=D), torch.tensor([0])
SIGMA = torch.tensor([[14 / 9, 2], [2, 8 / 3]], dtype=D)


def table(sigma, kind, classes=3):
    """Covariances of all classes, of which class 0 has this one and the others have what must not be used."""
    found = torch.full((classes, 2, 2), 77.0, dtype=D)
    found[0] = sigma
    return found if kind == "full" else found.diagonal(dim1=1, dim2=2).contiguous()


def problem(kind, size=9, classes=6, width=4, seed=0):
    """Random logits, class vectors, labels (some classes several times, some never) and covariances."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=D)  # noqa: E731
    root = draw(classes, width, width)
    cov = root @ root.transpose(1, 2)
    cov = cov if kind == "full" else cov.diagonal(dim1=1, dim2=2).contiguous()
    labels = torch.randint(classes - 1, (size,), generator=generator)
    labels[:2] = labels[2]
    return draw(size, classes), draw(classes, width), labels, cov


def by_loops(logits, weight, labels, cov, strength):
    """The formula of the logits, one image and one class after the other."""
    found = logits.clone()
    for i, y in enumerate(labels.tolist()):
        sigma = cov[y] if cov.ndim == 3 else torch.diag(cov[y])
        for c in range(len(weight)):
            away = weight[c] - weight[y]
            found[i, c] += strength / 2 * (away @ sigma @ away)
    return found


def isda_logits(logits, weight, labels, cov, strength):
    """The logits by the forms of the classes that are present, as MetaSAug makes them."""
    present, slot = torch.unique(labels, return_inverse=True)
    return logits + strength / 2 * quadratic_forms(weight, present, cov[present])[slot]


class Largest(TorchDispatchMode):
    """The largest tensor that any operation makes; a view of nothing new does not count."""

    def __init__(self):
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        found = function(*arguments, **(options or {}))
        made = [item for item in tree_leaves(found) if isinstance(item, torch.Tensor)]
        self.numbers = max([self.numbers, *(item.untyped_storage().nbytes() // item.element_size() for item in made)])
        return found
