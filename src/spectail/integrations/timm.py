"""A timm training task whose checkpoints hold the state of the loss."""

from __future__ import annotations

from typing import Any, cast

from torch import nn

from .._utils.versions import FRAMEWORKS, need

FOUND, LEAST = need("timm"), FRAMEWORKS["timm"].least

# what no version number tells: a build of one's own, or a later release that has moved it
OTHER = f"timm {FOUND} is not used: its checkpoints have no place for the state of a loss; pip install timm=={LEAST}"
try:
    from timm.task import ClassificationTask
except ImportError:
    raise ImportError(OTHER, name="timm") from None
if not hasattr(ClassificationTask, "get_task_state"):
    raise ImportError(OTHER, name="timm")


class StatefulTask(ClassificationTask):
    """``timm.task.ClassificationTask`` with the state of its loss in ``CheckpointSaver``'s files.

    timm saves the model and the optimizer, and of a task only what it asks to be saved: the history of CAR would be
    lost when training resumes. Here it is saved as ``task_state`` and read by ``load_checkpoint_state``.

    Args:
        model: the model to train.
        criterion: a loss module such as :class:`~spectail.CARLoss`; labels from timm's Mixup are welcome.
        **options: those of ``ClassificationTask``.

    Example:
        >>> import torch
        >>> from spectail import CARLoss
        >>> task = StatefulTask(nn.Linear(4, 3), CARLoss([500, 50, 5]), verbose=False)
        >>> sorted(task(torch.randn(2, 4), torch.tensor([0, 1])))
        ['loss', 'output']
        >>> sorted(task.get_checkpoint_state())
        ['state_dict', 'task_state']
    """

    def __init__(self, model: nn.Module, criterion: nn.Module, **options: Any) -> None:
        if not isinstance(criterion, nn.Module):
            raise TypeError(f"criterion must be a loss module such as CARLoss; got {type(criterion).__name__}.")
        super().__init__(model, criterion, **options)

    def get_task_state(self, module: nn.Module | None = None, ema: bool = False) -> dict[str, Any]:
        """The state of the loss; the averaged model has none of its own."""
        return {} if ema else dict(cast(nn.Module, self.criterion).state_dict())

    def load_task_state(
        self, state: dict[str, Any] | None, strict: bool = True, module: nn.Module | None = None, ema: bool = False
    ) -> None:
        """Put the state of a checkpoint into the loss."""
        if ema:
            return
        if state:
            cast(nn.Module, self.criterion).load_state_dict(state, strict=strict)
        elif strict:
            raise ValueError(
                "the checkpoint has no state of the loss: load it with strict=False to begin with an empty history."
            )
