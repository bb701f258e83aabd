"""A spectail loss as the ``compute_loss_func`` of Hugging Face's Trainer, and its figures as ``compute_metrics``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .._core.distributed import find_group, rank_and_world
from .._utils.versions import need
from ..car_loss import CARLoss
from ..counts import CountsLike
from ..metrics import Metrics

need("huggingface")

from transformers import TrainerCallback  # noqa: E402 - not before its version is known

KEY = "spectail"  # of the state of the loss in the optimizer's first parameter group
IGNORED = -100  # the label that the Trainer does not count


class LossFunction(TrainerCallback):
    r"""Give it to the Trainer twice: ``Trainer(..., compute_loss_func=loss, callbacks=[loss])``.

    The Trainer adds up what this returns over the micro-batches of a step and does not divide. A mean over a batch, or
    a batch-level term such as CAR, would count once per micro-batch. Micro-batch i is therefore weighted with its share
    of the samples,

    .. math:: L = \sum_i \frac{n_i}{\sum_j n_j}\,\bigl(\text{base}_i + \alpha\,\text{CAR}_i\bigr),

    where n_i counts the labels that are not ignored, on all ranks. With A equal micro-batches each weighs 1 / A, as in
    a plain loop; with an unequal last one the base loss is still the mean over all samples, and the weights of CAR
    still sum to 1. The history of CAR moves once per micro-batch.

    Args:
        criterion: :class:`~spectail.CARLoss`, or any loss ``(logits, labels)`` that is a mean over samples.
        missing: what to do if training resumes from a checkpoint without the state of the loss: ``"error"``, or
            ``"start"`` to begin with an empty history.

    State and distributed:
        The state of the loss is written into the first parameter group of ``optimizer.pt`` and read back when training
        resumes, wherever the checkpoint lies. ``save_only_model=True`` leaves it out, as it does the optimizer.
        With it go the norms of the model's parameters: the Trainer does not restore models whose parameters are renamed
        when they are saved, ViT among them (transformers issue 43701), and says so in a warning only. Here it is an
        error; load such a model with ``from_pretrained(checkpoint)`` and then resume.
        DDP needs nothing more, with ``average_tokens_across_devices`` on or off. ``start_step`` and ``warmup_steps``
        of CARLoss count micro-batches. Several GPUs in one process (nn.DataParallel) are refused: use torchrun.

    Example:
        >>> from spectail import CARLoss
        >>> loss = LossFunction(CARLoss([500, 50, 5]))
        >>> # trainer = Trainer(model, args, ..., compute_loss_func=loss, callbacks=[loss])
    """

    def __init__(self, criterion: nn.Module, *, missing: str = "error") -> None:
        if not isinstance(criterion, nn.Module):
            raise TypeError(f"criterion must be a loss module such as CARLoss; got {type(criterion).__name__}.")
        if missing not in ("error", "start"):
            raise ValueError(f"missing must be 'error' or 'start'; got {missing!r}.")
        if isinstance(criterion, CARLoss) and criterion.car.ignore_index != IGNORED:
            raise ValueError(
                f"the Trainer leaves out the label {IGNORED} only; got ignore_index={criterion.car.ignore_index}."
            )
        self.criterion, self.missing = criterion, missing
        self._args: Any = None
        self._model: Any = None
        self._hook: Any = None

    def __call__(self, outputs: Any, labels: Tensor | None, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """The part that this micro-batch has in the loss of the whole step."""
        if self._args is None:
            raise RuntimeError("the Trainer does not know this loss as a callback: pass callbacks=[loss] as well.")
        if labels is None:
            raise ValueError("the batch has no labels: name them 'labels' in what the data collator returns.")
        loss: Tensor = self.criterion(_logits(outputs), labels)
        if num_items_in_batch is not None:
            return loss * self._weight(labels, num_items_in_batch, loss.dtype)
        if torch.is_grad_enabled():
            raise ValueError(
                "the Trainer did not count the labels of this step, so its micro-batches cannot be weighted: "
                "give 'labels' as one tensor per batch."
            )
        return loss

    def _weight(self, labels: Tensor, num_items: Tensor | int, dtype: torch.dtype) -> Tensor:
        """Of one micro-batch in its step; what the Trainer and DDP will multiply by is divided out."""
        _, world = rank_and_world()
        mine = labels.ne(IGNORED).sum().to(dtype)  # as the Trainer counts; soft labels count K per sample there too
        everyone = torch.as_tensor(num_items, dtype=dtype, device=labels.device).sum()
        group = find_group(self.criterion.car.sync) if isinstance(self.criterion, CARLoss) else None
        shared = 1
        if group is not None:  # the loss is that of the group's batch: DDP's mean over ranks counts it once per group
            shared = dist.get_world_size(group)
            dist.all_reduce(mine, group=group)
        if world > 1 and not self._args.average_tokens_across_devices:
            dist.all_reduce(everyone)
        factor = 1 if self._args.average_tokens_across_devices else world  # the Trainer multiplies by world, or not
        return factor * mine / (shared * everyone.clamp_min(1))

    def on_init_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if args.n_gpu > 1:
            raise RuntimeError(
                f"one process drives {args.n_gpu} GPUs (nn.DataParallel), which is not supported: use torchrun."
            )
        self._args = args

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None, **others: Any
    ) -> None:
        """Take the state of a checkpoint that the optimizer has loaded, and add it to those it will save."""
        inner = getattr(optimizer, "optimizer", optimizer)  # as Accelerate wraps it
        if not hasattr(inner, "register_state_dict_post_hook"):
            raise RuntimeError(
                f"the state of the loss is saved with a torch optimizer; got {type(inner).__name__}. Give the Trainer "
                "an optimizer of torch.optim, or one derived from it."
            )
        self._model = model
        saved = inner.param_groups[0].pop(KEY, None)
        if saved is not None:
            check_restored(model, saved["norms"])
            self.criterion.load_state_dict(saved["loss"])
        elif state.global_step > 0 and self.missing == "error":
            raise ValueError(
                f"training resumes at step {state.global_step} and the checkpoint has no state of the loss: "
                "pass LossFunction(..., missing='start') to begin with an empty history."
            )
        if self._hook is not None:
            self._hook.remove()
        self._hook = inner.register_state_dict_post_hook(self._add_state)

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _add_state(self, optimizer: Any, state_dict: dict[str, Any]) -> None:
        loss = dict(self.criterion.state_dict())  # plain, or torch.load would not read it with weights_only
        state_dict["param_groups"][0][KEY] = {"loss": loss, "norms": parameter_norms(self._model)}


class GroupMetrics:
    """``Trainer(..., compute_metrics=GroupMetrics(class_counts))``: head, medium, tail and worst class, in percent.

    Args:
        class_counts: training images per class.
        convention: rule for head, medium and tail, see :meth:`spectail.ClassCounts.groups`.

    A group without a test image has no figure. ``worst_class`` is a label, ``worst`` its accuracy.

    Example:
        >>> import numpy as np
        >>> figures = GroupMetrics([500, 60, 5])((9 * np.eye(3)[[0, 0, 1, 1]], np.array([0, 0, 1, 2])))
        >>> figures["overall"], figures["tail"], figures["worst_class"]
        (75.0, 0.0, 2)
    """

    def __init__(self, class_counts: CountsLike, convention: str = "count") -> None:
        self.metrics = Metrics(class_counts, convention)

    def __call__(self, prediction: Any) -> dict[str, float]:
        logits, labels = prediction
        logits = logits[0] if isinstance(logits, tuple) else logits
        self.metrics.reset()
        self.metrics.update(torch.as_tensor(logits), torch.as_tensor(labels))
        found = self.metrics.compute()
        names = ("overall", "balanced", "head", "medium", "tail", "spectral_norm")
        figures = {name: found[name] for name in names if found[name] is not None}
        return {**figures, "worst": found["worst_test"], "worst_class": found["per_class"].index(found["worst_test"])}


def parameter_norms(model: nn.Module) -> Tensor:
    """One number per parameter, by which to know weights again; none where a rank holds only parts of them."""
    parameters = list(model.parameters())
    if any(hasattr(parameter, "device_mesh") for parameter in parameters):
        return torch.zeros(0)
    return torch.stack([parameter.detach().float().norm().cpu() for parameter in parameters])


def check_restored(model: nn.Module, saved: Tensor) -> None:
    """The weights must be those of the checkpoint that the state of the loss comes from."""
    found = parameter_norms(model)
    if saved.numel() == found.numel() and not torch.allclose(found, saved.cpu(), rtol=1e-4, atol=1e-6):
        wrong = int((~torch.isclose(found, saved.cpu(), rtol=1e-4, atol=1e-6)).sum())
        raise ValueError(
            f"{wrong} of {len(found)} parameters are not those of the checkpoint: the Trainer has not restored them. "
            "Make the model with from_pretrained(checkpoint) and resume with it."
        )


def _logits(outputs: Any) -> Tensor:
    """Of a ModelOutput, a dict or a tuple; without labels a model returns its logits first."""
    found = outputs.get("logits") if isinstance(outputs, Mapping) else outputs
    found = found[0] if isinstance(found, (tuple, list)) else found
    if not isinstance(found, Tensor):
        raise TypeError(f"the model must return its logits, as outputs.logits or first; got {type(outputs).__name__}.")
    return found
