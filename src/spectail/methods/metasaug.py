"""MetaSAug (Li et al. 2021): features augmented along the covariance of their class (ISDA), which is corrected at every
step by looking one SGD step ahead at class-balanced data.

The covariance of a rare class is a poor estimate. So each step asks: after an SGD step on the augmented loss, how does
the loss on a balanced meta batch depend on the covariances? They are moved against that gradient, for this step only,
and the real step uses them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from .._core.distributed import rank_and_world, summed
from .._utils.checks import within
from ..augment.covariance import ClassCovariance, present
from ..augment.isda import covariance_gradient, quadratic_forms
from ..losses import CrossEntropyLoss, effective_number_weights
from ..losses.ldam import margins
from ..models.classifier import Classifier
from ..targets import class_indices
from .base import About, Method, Outcome, Stage, Step, Stream
from .deferred import switch_epoch
from .two_stage import TwoStage, TwoStageOptions

if TYPE_CHECKING:
    from ..data.loader import Batch

RATE = 0.1
"""Of the step ahead where the real one is not by SGD."""
LOOK = 20
"""Steps between looks at the smallest eigenvalue of full matrices, which costs more than the step itself."""
PIECE = 64
"""Images that a thread takes through a frozen backbone at once. Smaller maps are cheaper to allocate in a fresh process
(a sixth of the pass for a ResNet-20 at batch 128), and cost nothing in one that has trained before."""


@dataclass(frozen=True)
class MetaSAugOptions(TwoStageOptions):
    start: float = 0.8
    """Share of the epochs before which training is plain cross entropy."""
    strength: float = 0.75
    """Strength of the augmentation at the end of training; it rises from 0 in the first epoch."""
    meta_lr: float = 0.1
    """Step of the covariances against the gradient of the meta loss."""
    covariance: Literal["auto", "full", "diagonal"] = "auto"
    """Form of the covariances. auto is diagonal from 1,000 classes or 384 features on, and else full."""
    virtual: Literal["head", "all"] = "head"
    """What the step ahead moves: the head, or the whole network (about five times the cost of a step)."""
    virtual_lr: float | None = None
    """Learning rate of the step ahead (default: the current one under SGD; else 0.1, as AdamW's is too small to matter
    in a plain step)."""
    beta: float = 0.9999
    """Beta of the effective numbers behind the class weights."""
    weight_average: Literal["weights", "samples"] = "weights"
    """Divide the weighted loss by the sum of the weights in the batch, or by the number of images."""
    max_margin: float = 0.0
    """Margin of the rarest class, as in LDAM; margins are subtracted from the logit of the label."""
    meta_data: Literal["train", "val"] = "train"
    """Where class-balanced meta batches come from."""
    meta_per_class: int | None = None
    """Training images of each class, drawn once, that meta batches keep to (default: fresh draws from all)."""
    meta_batch_size: int | None = None
    """Images in a meta batch (default: the batch size of the stage)."""
    frozen: bool = False
    """Train in two stages: cross entropy throughout, then MetaSAug on the head alone over a frozen backbone."""
    psd: bool = False
    """Cut negative eigenvalues off the corrected covariances."""
    stage2_lr: float = 3e-4
    stage2_schedule: Literal["cosine", "cosine-epochs", "constant"] = "constant"

    def check(self) -> None:
        super().check()
        within("start", self.start, 0, 1)
        within("strength", self.strength, 0)
        within("meta-lr", self.meta_lr, 0)
        within("max-margin", self.max_margin, 0)
        within("virtual-lr", self.virtual_lr, 0, open_low=True)
        within("meta-batch-size", self.meta_batch_size, 1)
        if self.meta_per_class is not None:
            within("meta-per-class", self.meta_per_class, 1)
            if self.meta_data == "val":
                raise ValueError(
                    "--meta-per-class picks training images; with --meta-data val say how many validation images there "
                    "are by --val-per-class."
                )


class MetaSAug(TwoStage):
    about = About(
        "feature augmentation, schedule",
        "CVPR 2021",
        "counts, linear head, class-balanced meta data (drawn from train)",
        "from its start on: 1.5 times a step; with --virtual all about 5 times",
        "step ahead on the head only (--virtual all is the authors'); meta data from the training set",
    )
    options = MetaSAugOptions()
    head = "linear"
    length: ClassVar[tuple[int, int]] = (20, 90)
    fresh_head = False

    covariance: ClassCovariance
    margin: Tensor
    meta_rows: Tensor | None
    _rows: Tensor | None = None
    """The same on the host."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        own = self.options
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
        own = self.options
        if own.meta_per_class is not None:
            return {"meta_data": f"{self._per_class()} of each class of the training set, also trained on"}
        source = {"train": "the training set", "val": "validation data"}[own.meta_data]
        return {"meta_data": f"class-balanced draws from {source}"}

    def _per_class(self) -> str:
        """How many different images of a class there are: small classes have fewer than was asked for."""
        found = self.counts.counts.clamp(max=self.options.meta_per_class)
        low, high = int(found.min()), int(found.max())
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

    def loss(self, model: Classifier, batches: Mapping[str, Batch], step: Step) -> Outcome:
        batch = batches["main"]
        batch = batch._replace(labels=class_indices(batch.labels, "metasaug"))
        if not self.active(step):
            logits = model(batch.images)
            return Outcome(self.plain(logits, batch.labels), logits, batch.labels)
        meta = batches["meta"]
        meta = meta._replace(labels=class_indices(meta.labels, "the meta batch of metasaug"))
        features, logits = model(batch.images, features=True)
        strength = self.options.strength * step.epoch / step.epochs
        moving = self.options.virtual == "all" and any(weight.requires_grad for weight in model.backbone.parameters())
        backbone = Moving(model.backbone, batch.images) if moving else Still(model.backbone, features, logits)
        meta = self._meta(meta, step)
        found = present(batch.labels, len(self.counts), step.known(batch))
        _, classes, place = found
        with torch.autocast(logits.device.type, enabled=False):
            cov = self._corrected(model.head, backbone, batch.labels, meta, classes, place, strength, step)
            raised = logits if logits.dtype == torch.float64 else logits.float()
            raised = raised + strength / 2 * quadratic_forms(_matrix(model.head, raised), classes, cov)[place]
            margin = self.margin.to(raised)[batch.labels, None]
            loss = self.criterion(raised.scatter_add(1, batch.labels[:, None], -margin), batch.labels)
        self.covariance.update(features.detach(), batch.labels, found)
        return Outcome(loss, logits, batch.labels)

    def _rate(self, step: Step) -> float:
        """Of the step ahead, which is plain SGD whatever makes the real one."""
        own, optimizer = self.options, step.optimizer
        if own.virtual_lr is not None:
            return own.virtual_lr
        optimizer = getattr(optimizer, "optimizer", optimizer)  # Accelerate wraps it
        return step.lr if isinstance(optimizer, torch.optim.SGD) else RATE

    def _corrected(
        self, head: nn.Module, backbone: Still | Moving, labels: Tensor, meta: Batch, classes: Tensor, place: Tensor,
        strength: float, step: Step,
    ) -> Tensor:  # fmt: skip
        """Covariances of the classes of the batch, after the step against the gradient of the meta loss."""
        own, weights = self.options, self.criterion.weight
        assert isinstance(weights, Tensor)
        each = weights.to(backbone.features)[labels]
        totals = summed(each.sum(), each.new_full((), len(labels)), each.new_full((), len(meta.labels)))
        cov = self.covariance.cov[classes].to(backbone.features)
        gradient, meta_loss = covariance_gradient(
            head, backbone, labels, each / totals[0 if own.weight_average == "weights" else 1], self.margin, cov,
            classes, place, strength, self._rate(step), meta.images, meta.labels, totals[2],
        )  # fmt: skip
        cov = cov - own.meta_lr * gradient
        step.log("meta_loss", meta_loss)
        if cov.ndim == 2:
            step.log("min_eigenvalue", cov.min())
            return cov.clamp_min(0) if own.psd else cov
        if own.psd:
            cov, smallest = cut_off(cov)
            step.log("min_eigenvalue", smallest)
            return cov
        if step.index % max(step.steps // step.epochs, 1) % LOOK == 0:
            step.log("min_eigenvalue", smallest_eigenvalue(cov))
        return cov


def _matrix(head: nn.Module, like: Tensor) -> Tensor:
    weight = head.weight
    assert isinstance(weight, Tensor)
    return weight.to(like)


class _Backbone:
    """Runs a backbone without a trace: with other weights if asked, and on copies of its running statistics."""

    features: Tensor
    logits: Tensor | None = None

    def __init__(self, backbone: nn.Module, device: str) -> None:
        self.backbone = backbone
        self.autocast = torch.autocast(device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device))

    def run(self, images: Any, weights: dict[str, Tensor] | None = None) -> Tensor:
        buffers = {name: buffer.clone() for name, buffer in self.backbone.named_buffers()}
        with self.autocast:
            found: Tensor = functional_call(self.backbone, {**buffers, **(weights or {})}, (images,))
        return found if found.dtype == torch.float64 else found.float()


class Still(_Backbone):
    """A backbone that the step ahead leaves where it is. Features and logits of the batch are those of the real
    pass, unless these were rounded."""

    def __init__(self, backbone: nn.Module, features: Tensor, logits: Tensor) -> None:
        super().__init__(backbone, features.device.type)
        self.features = features.detach() if features.dtype == torch.float64 else features.detach().float()
        self.logits = logits.detach() if logits.dtype == self.features.dtype else None

    def step(self, slope: Tensor, weight: Tensor, lr: float) -> None:
        """Nothing moves."""

    @torch.no_grad()
    def meta(self, images: Any) -> Tensor:
        if any(module.training for module in self.backbone.modules()):
            return self.run(images)  # batch norm needs the images together, and its statistics must not notice
        size = PIECE * torch.get_num_threads() if images.device.type == "cpu" else len(images)
        with self.autocast:
            found = torch.cat([self.backbone(part) for part in images.split(size)])
        return found if found.dtype == torch.float64 else found.float()

    def turned(self, slope: Tensor, weight: Tensor) -> Tensor | None:
        return None


class Moving(_Backbone):
    """A backbone that makes the step ahead too: two more passes forward, two backward and one of second order."""

    def __init__(self, backbone: nn.Module, images: Any) -> None:
        super().__init__(backbone, images.device.type)
        named = backbone.named_parameters()
        self.weights = {name: value.detach().requires_grad_() for name, value in named if value.requires_grad}
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):  # fused attention has no second derivative
            self.found = self.run(images, self.weights)
        self.features = self.found.detach()

    def step(self, slope: Tensor, weight: Tensor, lr: float) -> None:
        # the gradient is linear in this slope, and differentiating along v by it gives the derivative of the features
        self.slope = (slope @ weight).requires_grad_()
        values = list(self.weights.values())
        self.gradients = torch.autograd.grad(
            self.found, values, self.slope, create_graph=True, allow_unused=True, materialize_grads=True
        )
        moves = summed(*(gradient.detach() for gradient in self.gradients))
        self.ahead = {
            name: (value.detach() - lr * move).requires_grad_()
            for (name, value), move in zip(self.weights.items(), moves, strict=True)
        }

    def meta(self, images: Any) -> Tensor:
        with torch.enable_grad():
            self.found = self.run(images, self.ahead)
        return self.found.detach()

    def turned(self, slope: Tensor, weight: Tensor) -> Tensor | None:
        values = list(self.ahead.values())
        found = torch.autograd.grad(self.found, values, slope @ weight, allow_unused=True, materialize_grads=True)
        pairs = [(g, v) for g, v in zip(self.gradients, summed(*found), strict=True) if g.requires_grad]
        if not pairs:
            return None
        gradients, along = zip(*pairs, strict=True)
        return torch.autograd.grad(gradients, self.slope, along)[0]


def smallest_eigenvalue(cov: Tensor) -> Tensor:
    """Of several symmetric matrices. Waits for the device, which must tell whether the decomposition has worked."""
    values: Tensor = torch.linalg.eigvalsh(cov)
    return values.min()


def cut_off(cov: Tensor) -> tuple[Tensor, Tensor]:
    """Symmetric matrices without their negative eigenvalues, and the smallest eigenvalue there was. Waits, too."""
    values, vectors = torch.linalg.eigh(cov)
    return (vectors * values.clamp_min(0)[:, None]) @ vectors.transpose(1, 2), values.min()


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
