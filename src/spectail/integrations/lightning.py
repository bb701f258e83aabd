"""What CAR sees, in Lightning's log: spectral norm, confusion spectrum and worst class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from .._core.sparse_svd import leading
from .._utils.versions import need
from ..car import CAR
from ..counts import CountsLike
from ..metrics import Metrics
from ..spectral import Triplet

need("lightning")

if TYPE_CHECKING:
    from lightning.pytorch import Callback
else:
    try:
        from lightning.pytorch import Callback
    except ImportError:  # the older name of the same package
        from pytorch_lightning import Callback

GROUPS = ("overall", "head", "medium", "tail")


class ConfusionMonitor(Callback):
    """Logs the state of CAR while training and the confusions of the validation set.

    ====================================  ===================================================================
    ``car/spectral_norm``                 norm of the running confusion times Lambda, at every batch
    ``car/worst_error``                   logged in its place with ``norm="worst"``
    ``car/singular_value_1``, 2, ...      its spectrum, at the end of each training epoch
    ``val/spectral_norm``                 norm of the validation set's hard confusion times Lambda
    ``val/singular_value_1``, 2, ...      its spectrum
    ``val/worst``, ``val/worst_class``    lowest accuracy of a class, in percent, and its label
    ``val/overall``, ``head``, ...        accuracy in percent; a group without a sample is not logged
    ====================================  ===================================================================

    The regulariser is found in the LightningModule: make the loss an attribute, ``self.criterion = CARLoss(...)``, so
    that Lightning moves and saves it. ``validation_step`` must return ``{"logits": ..., "target": ...}``.

    Args:
        class_counts: training images per class; None takes those of the regulariser.
        singular_values: how many values of a spectrum to log; 0 for none. A spectrum takes about a second for 1,000
            classes with a dense history.
        validation: False logs nothing about the validation set.
        convention: rule for head, medium and tail, see :meth:`spectail.ClassCounts.groups`.

    State and distributed:
        There is nothing to save: the history is part of the LightningModule and so of every checkpoint. Figures are
        those of all ranks. Lightning wraps the whole module in DDP, which broadcasts buffers at every step; those of
        CAR, equal on all ranks, are taken off that list.

    Example:
        >>> monitor = ConfusionMonitor(singular_values=3)
        >>> # trainer = Trainer(..., callbacks=[monitor])
    """

    def __init__(
        self,
        class_counts: CountsLike | None = None,
        *,
        singular_values: int = 5,
        validation: bool = True,
        convention: str = "count",
    ) -> None:
        if singular_values < 0:
            raise ValueError(f"singular_values must be 0 or more; got {singular_values}.")
        self.singular_values, self.validation, self.convention = singular_values, validation, convention
        self.metrics = None if class_counts is None else Metrics(class_counts, convention)
        self.car: CAR | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Find the regulariser before the module is wrapped."""
        self.car = next((module for module in pl_module.modules() if isinstance(module, CAR)), None)
        if self.car is None and self.metrics is None:
            raise ValueError(
                f"{type(pl_module).__name__} has no CAR or CARLoss: make the loss an attribute of it, or pass "
                "ConfusionMonitor(class_counts) to log validation figures only."
            )
        if self.car is not None:
            keep_from_broadcast(pl_module)
            self.metrics = self.metrics or Metrics(self.car.counts, self.convention)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.car is not None and self.car.last is not None:  # the Trainer's log_every_n_steps thins it out
            pl_module.log(f"car/{self.car.figure}", self.car.last.value, on_step=True, on_epoch=False)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if self.car is not None and isinstance(self.car.last, Triplet) and self.singular_values:
            weighted = (self.car.confusion * self.car.weights.to(self.car.confusion)).cpu().double()
            rows, columns = weighted.nonzero(as_tuple=True)
            entries = (rows.numpy(), columns.numpy(), weighted[rows, columns].numpy())
            values, _, _ = leading(*entries, len(weighted), self.singular_values)
            self._spectrum(pl_module, "car", values)

    def on_validation_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if self.metrics is not None:
            self.metrics.to(pl_module.device).reset()

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if self.metrics is None or not self.validation:
            return
        given = outputs if isinstance(outputs, Mapping) else {}
        logits, target = given.get("logits"), given.get("target")
        if not isinstance(logits, Tensor) or not isinstance(target, Tensor):
            raise ValueError(
                "validation_step must return {'logits': ..., 'target': ...} for ConfusionMonitor; "
                f"got {sorted(given) or type(outputs).__name__}. Return them, or pass validation=False."
            )
        self.metrics.update(logits.detach(), target)

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if self.metrics is None or not self.validation or trainer.sanity_checking:
            return
        self.metrics.sync()
        found = self.metrics.compute()
        figures = {name: found[name] for name in (*GROUPS, "spectral_norm") if found[name] is not None}
        figures |= {"worst": found["worst_test"], "worst_class": float(found["per_class"].index(found["worst_test"]))}
        self._log(pl_module, "val", figures)
        if self.singular_values:
            self._spectrum(pl_module, "val", self.metrics.spectrum(self.singular_values))

    def _spectrum(self, pl_module: Any, name: str, values: NDArray[np.float64]) -> None:
        self._log(pl_module, name, {f"singular_value_{i}": float(value) for i, value in enumerate(values, 1)})

    def _log(self, pl_module: Any, name: str, figures: dict[str, float]) -> None:
        """At the end of an epoch. They are equal on all ranks; sync_dist is what Lightning wants to be told."""
        pl_module.log_dict({f"{name}/{key}": value for key, value in figures.items()}, sync_dist=True)


def keep_from_broadcast(module: nn.Module) -> None:
    """Take the buffers of every CAR in a module off the list that DDP broadcasts; call it before DDP wraps the module.

    Example:
        >>> model = nn.ModuleDict({"criterion": CAR([2, 1])})
        >>> keep_from_broadcast(model)
        >>> "criterion.history.rows" in model._ddp_params_and_buffers_to_ignore
        True
    """
    names = {
        f"{name}.{buffer}" if name else buffer
        for name, part in module.named_modules()
        if isinstance(part, CAR)
        for buffer, _ in part.named_buffers()
    }
    # what DistributedDataParallel reads in its constructor; torch has no public name for it
    known = getattr(module, "_ddp_params_and_buffers_to_ignore", [])
    module._ddp_params_and_buffers_to_ignore = sorted({*known, *names})  # type: ignore[assignment]
