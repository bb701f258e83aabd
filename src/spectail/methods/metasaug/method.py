"""MetaSAug (Li et al. 2021): features augmented along the covariance of their class (ISDA), which is corrected at every
step by looking one SGD step ahead at class-balanced data.

The covariance of a rare class is a poor estimate. So each step asks: after an SGD step on the augmented loss, how does
the loss on a balanced meta batch depend on the covariances? They are moved against that gradient, for this step only,
and the real step uses them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from ..._core.distributed import rank_and_world, summed
from ..._core.dtypes import at_least_single
from ..._utils.checks import AtLeastOne, NotNegative, Positive, Proportion
from ...augment.covariance import ClassCovariance, Present, present
from ...augment.isda import quadratic_forms
from ...data.batch import Batch
from ...losses import CrossEntropyLoss, effective_number_weights
from ...losses.ldam import margins
from ...models.classifier import Classifier
from ...targets import class_indices
from ..base import About, Batches, Method, Outcome, Stage, Step, Stream
from ..deferred import switch_epoch
from ..two_stage import TwoStage, TwoStageOptions
from .look_ahead import Augmented, Moving, Still, covariance_gradient, cut_off, smallest_eigenvalue

RATE = 0.1
"""Learning rate of the step ahead where the real one is not by SGD."""
LOOK = 20
"""Steps between looks at the smallest eigenvalue of full matrices, which costs more than the step itself."""


@dataclass(frozen=True)
class MetaSAugOptions(TwoStageOptions):
    start: Proportion = 0.8
    """Share of the epochs before which training is plain cross entropy."""
    strength: NotNegative = 0.75
    """Strength of the augmentation at the end of training; it rises from 0 in the first epoch."""
    meta_lr: NotNegative = 0.1
    """Step of the covariances against the gradient of the meta loss."""
    covariance: Literal["auto", "full", "diagonal"] = "auto"
    """Form of the covariances. auto is diagonal from 1,000 classes or 384 features on, and else full."""
    virtual: Literal["head", "all"] = "head"
    """What the step ahead moves: the head, or the whole network (about five times the cost of a step)."""
    virtual_lr: Positive | None = None
    """Learning rate of the step ahead (default: the current one under SGD; else 0.1, as AdamW's is too small to matter
    in a plain step)."""
    beta: Proportion = 0.9999
    """Beta of the effective numbers behind the class weights."""
    weight_average: Literal["weights", "samples"] = "weights"
    """Divide the weighted loss by the sum of the weights in the batch, or by the number of images."""
    max_margin: NotNegative = 0.0
    """Margin of the rarest class, as in LDAM; margins are subtracted from the logit of the label."""
    meta_data: Literal["train", "val"] = "train"
    """Where class-balanced meta batches come from."""
    meta_per_class: AtLeastOne | None = None
    """Training images of each class, drawn once, that meta batches keep to (default: fresh draws from all)."""
    meta_batch_size: AtLeastOne | None = None
    """Images in a meta batch (default: the batch size of the stage)."""
    frozen: bool = False
    """Train in two stages: cross entropy throughout, then MetaSAug on the head alone over a frozen backbone."""
    psd: bool = False
    """Cut negative eigenvalues off the corrected covariances."""
    stage2_lr: Positive = 3e-4
    stage2_schedule: Literal["cosine", "cosine-epochs", "constant"] = "constant"

    def check(self) -> None:
        super().check()
        if self.meta_per_class is not None and self.meta_data == "val":
            raise ValueError(
                "--meta-per-class picks training images; with --meta-data val say how many validation images there are "
                "by --val-per-class."
            )


class MetaSAug(TwoStage):
    about = About(
        "feature augmentation, schedule",
        "CVPR 2021",
        "class counts, linear head, class-balanced meta batches (from the training set)",
        "once it starts, a step takes 1.5 times as long, with --virtual all about 5 times",
        "looks ahead on the head only, the authors on the whole network (--virtual all); meta batches come from "
        "the training set",
    )
    options = MetaSAugOptions()
    takes_mixed = False
    head = "linear"
    length: ClassVar[tuple[int, int]] = (20, 90)
    fresh_head = False
    nesterov = True

    covariance: ClassCovariance
    margin: Tensor
    meta_rows: Tensor | None
    _rows: Tensor | None = None
    """The same on the host."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        own = self.options
        self.compiles = own.virtual == "head"
        self.register_buffer("margin", margins(self.counts, own.max_margin).float(), persistent=False)
        fixed = own.meta_per_class
        self.register_buffer(
            "meta_rows", None if fixed is None else torch.zeros(len(self.counts), fixed, dtype=torch.int64)
        )

    def make_criterion(self) -> nn.Module:
        return CrossEntropyLoss(effective_number_weights(self.counts, self.options.beta), self.options.weight_average)

    def build(self, backbone: nn.Module, head: nn.Module) -> Classifier:
        kind, features = self.options.covariance, int(head.in_features)  # type: ignore[arg-type]
        if kind == "auto":
            kind = "diagonal" if len(self.counts) >= 1000 or features >= 384 else "full"
        self.covariance = ClassCovariance(len(self.counts), features, kind)
        return super().build(backbone, head)

    # -- when --

    def stages(self) -> list[Stage]:
        return super().stages() if self.options.frozen else Method.stages(self)

    def active(self, step: Step) -> bool:
        """Whether the augmented part of training has begun."""
        own = self.options
        return step.stage.name == "stage2" if own.frozen else step.epoch >= switch_epoch(own.start, step.epochs)

    def phase(self, step: Step) -> str:
        return "metasaug" if self.active(step) and not self.options.frozen else step.stage.name

    def begin_stage(self, model: Classifier, step: Step, *, resumed: bool) -> None:
        if self.meta_rows is not None and not resumed:
            assert step.labels is not None
            self._rows = some_of_each(step.labels, len(self.counts), self.meta_rows.shape[1], step.generator)
            self.meta_rows.copy_(self._rows)

    def _load_from_state_dict(self, state: dict[str, Tensor], prefix: str, *rest: object) -> None:
        super()._load_from_state_dict(state, prefix, *rest)
        self._rows = None if self.meta_rows is None else self.meta_rows.cpu()

    # -- data --

    def streams(self, stage: Stage) -> dict[str, Stream]:
        own = self.options
        if own.frozen and stage.name == "stage1":
            return {"main": Stream()}
        if own.meta_per_class is not None:  # the stream only says how many images each rank draws
            return {"main": Stream(), "meta": Stream(batch_size=own.meta_batch_size, drop_last=True, images=False)}
        meta = Stream("class-balanced", split=own.meta_data, batch_size=own.meta_batch_size)
        return {"main": Stream(), "meta": meta}

    def streams_in_use(self, step: Step) -> set[str] | None:
        return {"meta"} if self.active(step) else set()

    def disclosures(self) -> dict[str, str]:
        if self.options.meta_per_class is not None:
            return {"meta_data": f"{self._per_class()} of each class of the training set, also trained on"}
        source = {"train": "the training set", "val": "validation data"}[self.options.meta_data]
        return {"meta_data": f"class-balanced draws from {source}"}

    def _per_class(self) -> str:
        """How many different images of a class there are: small classes have fewer than was asked for."""
        images = self.counts.counts.clamp(max=self.options.meta_per_class)
        low, high = int(images.min()), int(images.max())
        return f"{low} to {high} images" if low < high else f"{low} image{'s' if low > 1 else ''}"

    def _meta(self, batch: Batch, step: Step) -> Batch:
        if self.meta_rows is None:
            return batch
        assert step.fetch is not None
        assert self._rows is not None
        rank, world = rank_and_world()
        size = (len(batch.labels) * world,)
        drawn = [torch.randint(limit, size, generator=step.generator)[rank::world] for limit in self.meta_rows.shape]
        return step.fetch(self._rows[drawn[0], drawn[1]])

    # -- a step --

    def loss(self, model: Classifier, batches: Batches, step: Step) -> Outcome:
        batch = batches["main"]
        labels = class_indices(batch.labels, "metasaug")
        if not self.active(step):
            logits = model(batch.images)
            return Outcome(self.plain(logits, labels), logits, labels)
        meta = batches["meta"]
        meta = meta._replace(labels=class_indices(meta.labels, "the meta batch of metasaug"))
        features, logits = model(batch.images, features=True)
        moving = self.options.virtual == "all" and any(weight.requires_grad for weight in model.backbone.parameters())
        backbone = Moving(model.backbone, batch.images) if moving else Still(model.backbone, features, logits)
        meta, strength = self._meta(meta, step), self.options.strength * step.epoch / step.epochs
        classes = present(labels, len(self.counts), step.known(batch))
        assert isinstance(model.head, nn.Linear)
        with torch.autocast(logits.device.type, enabled=False):
            cov = self._corrected(model.head, backbone, labels, classes, meta, strength, step)
            raised = at_least_single(logits)
            forms = quadratic_forms(model.head.weight.to(raised), classes.classes, cov)
            raised = raised + strength / 2 * forms[classes.slot]
            margin = self.margin.to(raised)[labels, None]
            loss = self.criterion(raised.scatter_add(1, labels[:, None], -margin), labels)
        self.covariance.update(features.detach(), labels, classes)
        return Outcome(loss, logits, labels)

    def _rate(self, step: Step) -> float:
        """Learning rate of the step ahead, which is plain SGD whatever makes the real one."""
        if self.options.virtual_lr is not None:
            return self.options.virtual_lr
        optimizer = getattr(step.optimizer, "optimizer", step.optimizer)  # Accelerate wraps it
        return step.lr if isinstance(optimizer, torch.optim.SGD) else RATE

    def _corrected(
        self, head: nn.Linear, backbone: Still | Moving, labels: Tensor, classes: Present, meta: Batch, strength: float,
        step: Step,
    ) -> Tensor:  # fmt: skip
        """Covariances of the classes of the batch, after the step against the gradient of the meta loss."""
        weights = self.criterion.weight
        assert isinstance(weights, Tensor)
        each = weights.to(backbone.features)[labels]
        weight, images, meta_images = summed(
            each.sum(), each.new_full((), len(labels)), each.new_full((), len(meta.labels))
        )
        shares = each / (weight if self.options.weight_average == "weights" else images)
        cov = self.covariance.cov[classes.classes].to(backbone.features)
        batch = Augmented(labels, shares, self.margin, cov, classes.classes, classes.slot, strength)
        gradient, meta_loss = covariance_gradient(
            head, backbone, batch, self._rate(step), meta.images, meta.labels, meta_images
        )
        step.log("meta_loss", meta_loss)
        return self._checked(cov - self.options.meta_lr * gradient, step)

    def _checked(self, cov: Tensor, step: Step) -> Tensor:
        """Covariances with their negative eigenvalues cut off, if asked; the smallest one is logged."""
        psd = self.options.psd
        if cov.ndim == 2:
            step.log("min_eigenvalue", cov.min())
            return cov.clamp_min(0) if psd else cov
        if psd:
            cov, smallest = cut_off(cov)
            step.log("min_eigenvalue", smallest)
        elif step.index % max(step.steps // step.epochs, 1) % LOOK == 0:
            step.log("min_eigenvalue", smallest_eigenvalue(cov))
        return cov


def some_of_each(labels: Tensor, classes: int, number: int, generator: torch.Generator | None) -> Tensor:
    """(K, number): indices of images of each class, drawn at random; a class with fewer has them several times.

    Example:
        >>> some_of_each(torch.tensor([1, 0, 1]), 2, 3, None).sort(1).values.tolist()[0]
        [1, 1, 1]
    """
    order = torch.randperm(len(labels), generator=generator)
    order = order[labels[order].argsort(stable=True)]
    counts = labels.bincount(minlength=classes)
    return order[(counts.cumsum(0) - counts)[:, None] + torch.arange(number) % counts[:, None]]
