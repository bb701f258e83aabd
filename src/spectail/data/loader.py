"""Loader: batches in a given order, the same whatever the number of workers or ranks, and resumable inside an epoch."""

from __future__ import annotations

import os
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import default_collate

from .._core import waits
from .batch import Batch
from .batch_transforms import BatchTransform
from .crops import BatchCrop, CropTransform
from .decoding import Crop
from .feature_set import FeatureSet
from .image_set import ImageSet
from .readers import Readers
from .samplers import DeferredSampler, LongTailSampler
from .transforms import Preset, Views

Request: TypeAlias = tuple[int, NDArray[np.int64]]
Made: TypeAlias = Sequence[tuple[Tensor, ...]]
AHEAD = 2
"""Batches that each worker makes ahead of the loop."""


class Loader:
    """Batches of an image set, for training with a sampler or in stored order for evaluation.

    Small images held in memory go through the preset's batch transform: no worker, no Python per image. All others are
    decoded one by one in ``workers`` processes, which last as long as the loader. Those of a fast transform come as
    bytes and are finished as a batch, on the device.

    **Random numbers.** An image's augmentation follows from the seed, the epoch, its place in it and (in memory) the
    size of the global batch. So a run gives the same batches with any number of workers, and ranks that share a global
    batch see the images that one process would see.

    **Ranks.** Rank r of W takes images r, r + W, ... of each global batch of ``batch_size * W``. All ranks make the
    same number of steps; a last batch with fewer images than ranks is left out on all of them.

    **Resuming.** ``state_dict()`` holds the epoch and how far the loop has come, counted when a batch is handed over,
    not when a worker fetches it. ``for epoch in range(loader.epoch, epochs): loader.set_epoch(epoch)`` goes on there.

    Args:
        data: the images.
        preset: from :func:`spectail.data.transforms.preset`; None for features, which are not transformed.
        batch_size: images per rank and step.
        sampler: order of the images; None takes them in stored order with the test transform.
        views: transforms, for several views of each image (contrastive methods); the images are then a tuple.
        workers: processes that decode images which are not in memory; "auto" for as many as there are free cores.
        drop_last: leave out a last, smaller batch.
        images: False for labels and indices only; the images of a batch are then None.
        device: where the batches are wanted; images in memory are kept and transformed there.
    """

    def __init__(
        self,
        data: ImageSet | FeatureSet,
        preset: Preset | None = None,
        *,
        batch_size: int = 128,
        sampler: LongTailSampler | DeferredSampler | None = None,
        views: Sequence[Callable[[Any], Tensor]] | None = None,
        workers: int | Literal["auto"] = 0,
        seed: int = 0,
        drop_last: bool = False,
        images: bool = True,
        rank: int = 0,
        world_size: int = 1,
        device: torch.device | str = "cpu",
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be 1 or more; got {batch_size}.")
        workers = free_cores() if workers == "auto" else workers
        if workers < 0:
            raise ValueError(f"workers must be 0 or more; got {workers}.")
        if world_size < 1 or not 0 <= rank < world_size:
            raise ValueError(f"rank must lie in [0, world_size); got rank {rank} and world_size {world_size}.")
        if sampler is not None and sampler.world_size != 1:
            raise ValueError("the loader shares batches out over ranks itself: make the sampler with world_size=1.")
        self.data, self.sampler, self.batch_size, self.workers = data, sampler, batch_size, workers
        self.seed, self.drop_last, self.rank, self.world_size = seed, drop_last, rank, world_size
        self.images = images
        self.device = torch.device(device)
        self.length = len(data) if sampler is None else sampler.length
        if self.length < world_size or (drop_last and self.length < batch_size * world_size):
            raise ValueError(
                f"{self.length} images make no batch of {batch_size} on {world_size} ranks. Use a smaller batch."
            )
        self.labels = torch.from_numpy(data.labels)
        self._fast: BatchTransform | BatchCrop | None = None
        chosen: Sequence[Any] = () if views is None else Views(views).transforms
        if preset is not None and views is None:
            chosen = [preset.test if sampler is None else preset.train]
            fast = preset.batch_test if sampler is None else preset.batch_train
            if fast is not None and data.pixels is not None:
                self._fast = fast.for_images(*data.pixels.shape[1:3])
        self._maker = Maker(data, chosen, seed, single=views is None) if isinstance(data, ImageSet) else None
        self._readers: Readers | None = None
        self.waited = 0.0
        """Seconds that the loop has waited for batches. Whoever reads it may set it back."""
        self.handed = 0
        """Images of the global batch that was handed over last."""
        if sampler is not None and sampler.class_counts.total != len(data):
            raise ValueError(
                f"the sampler was made for {sampler.class_counts.total} images, the data has {len(data)}: "
                "make it with LongTailSampler(data.labels)."
            )
        self._stored = self._fast.prepare(data.pixels).to(self.device) if self._fast else None  # type: ignore[arg-type]
        self.epoch = self.position = self._start = 0
        self._fetched: tuple[tuple[int, int], int] = (-1, -1), 0

    @property
    def in_memory(self) -> bool:
        """Whether whole batches are transformed at once."""
        return self._fast is not None

    def __len__(self) -> int:
        """Steps of a whole epoch."""
        return len(self._starts(0))

    def __iter__(self) -> Iterator[Batch]:
        if self.sampler is None:
            self._go(0, 0)  # an evaluation always begins at the beginning
        elif self.position >= self.length:
            self._go(self.epoch + 1, 0)
        order = np.arange(self.length) if self.sampler is None else self.sampler.order(self.epoch)
        starts = self._starts(self.position)
        at_hand = not self.images or isinstance(self.data, FeatureSet) or self._fast is not None
        batches = (self._in_order(order, start) for start in starts) if at_hand else self._read(order, starts)
        for start in starts:
            with self._waiting():
                batch = next(batches)
            self.position = min(start + self.batch_size * self.world_size, self.length)
            self.handed = self.position - start
            yield batch
        self.position = self.length

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch; in the epoch that a state was loaded into, to the place it says."""
        self._go(epoch, self._start if epoch == self.epoch else 0)

    def rewind(self, epoch: int) -> None:
        """Go to the beginning of an epoch, wherever the loader is."""
        self._go(epoch, 0)

    def state_dict(self) -> dict[str, Any]:
        """Epoch, images of it handed over on all ranks, and what the order depends on; fit for JSON."""
        order = None if self.sampler is None else self.sampler.settings
        return {"epoch": self.epoch, "position": self.position, "seed": self.seed, "order": order}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        mine = self.state_dict()
        for name in ("seed", "order"):
            if state.get(name) != mine[name]:
                raise ValueError(
                    f"the saved loader had another {name} ({state.get(name)!r}, here {mine[name]!r}); "
                    "resume with the data and settings of the run."
                )
        epoch, position = state.get("epoch"), state.get("position")
        if not (isinstance(epoch, int) and isinstance(position, int) and epoch >= 0 and 0 <= position <= self.length):
            raise ValueError(f"a loader's state needs a valid epoch and position; got {epoch!r} and {position!r}.")
        self._go(*((epoch + 1, 0) if position == self.length else (epoch, position)))

    def _go(self, epoch: int, position: int) -> None:
        self.epoch, self.position, self._start = epoch, position, position

    def _starts(self, position: int) -> range:
        """Where each global batch from ``position`` on begins."""
        size = self.batch_size * self.world_size
        smallest = size if self.drop_last else self.world_size
        return range(position, self.length - smallest + 1, size)

    def _share(self, order: NDArray[np.int64], start: int) -> NDArray[np.int64]:
        return order[start : start + self.batch_size * self.world_size][self.rank :: self.world_size]

    def fetch(self, rows: Tensor) -> Batch:
        """The images with these indices, transformed as in training, beside the stream of batches.

        Their augmentation follows from the place in the epoch. Ranks that together fetch a global batch, each the
        same number of its images, get what one process would get.
        """
        with self._waiting():
            here = (self.epoch, self.position)
            again = self._fetched[1] + 1 if self._fetched[0] == here else 0  # several micro-batches may ask here
            self._fetched = here, again
            if isinstance(self.data, FeatureSet) or self._fast is not None:
                seed = [*b"fetch", self.seed, self.epoch, self.position, again]
                return self._at_once(rows, len(rows) * self.world_size, seed)
            first = self.length * (1 + again) + self.position  # beyond the keys of the stream
            keys = first + self.rank + self.world_size * np.arange(len(rows))
            parts = np.array_split(np.stack([rows.numpy(), keys], 1), max(min(self.workers, len(rows)), 1))
            made = list(self._made((self.epoch, part) for part in parts))
            whole = [tuple(map(torch.cat, zip(*views, strict=True))) for views in zip(*made, strict=True)]
            return self._finished(whole, rows)

    def close(self) -> None:
        """Stop the workers. They are started again when they are needed."""
        if self._readers is not None:
            self._readers.close()
            self._readers = None

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.waited += time.perf_counter() - start

    def _read(self, order: NDArray[np.int64], starts: range) -> Iterator[Batch]:
        """Batches of images that are decoded one by one."""
        pairs = np.stack([order, np.arange(len(order))], 1)
        epoch = self.epoch if self.sampler is not None else 0
        made = self._made((epoch, self._share(pairs, start)) for start in starts)
        for start, views in zip(starts, made, strict=True):
            yield self._finished(views, torch.from_numpy(self._share(order, start).copy()))

    def _made(self, requests: Iterator[Request]) -> Iterator[Made]:
        """What `Maker` makes of requests, in their order, with workers or without."""
        assert self._maker is not None
        if not self.workers:
            yield from map(self._maker, requests)
            return
        if self._readers is None:
            self._readers = Readers(self._maker, self.workers)
        readers = self._readers
        asked = deque(readers.ask(request) for request in islice(requests, AHEAD * self.workers))
        try:
            while asked:
                made = readers.answer(asked.popleft())
                asked.extend(readers.ask(request) for request in islice(requests, 1))
                yield made
        finally:
            readers.forget(asked)

    def _in_order(self, order: NDArray[np.int64], start: int) -> Batch:
        rows = torch.from_numpy(self._share(order, start).copy())
        size = min(self.batch_size * self.world_size, self.length - start)
        seed = None if self.sampler is None else [*b"augment", self.seed, self.epoch, start]
        return self._at_once(rows, size, seed, images=self.images)

    def _at_once(self, rows: Tensor, size: int, seed: list[int] | None, *, images: bool = True) -> Batch:
        """A batch that needs no file: labels only, features, or images in memory.

        Numbers are drawn for a global batch of ``size``, of which each rank takes its rows; none without a ``seed``.
        """
        made: Any = None
        if images and isinstance(self.data, FeatureSet):
            made = waits.sent(self.data.features[rows], self.device)
        elif images:
            assert self._fast is not None
            assert self._stored is not None
            draws: Any = None
            if seed is not None:
                draws = self._fast.draws(size, np.random.default_rng(seed))[self.rank :: self.world_size]
            made = self._fast(self._stored, rows, draws)
        return Batch(made, waits.sent(self.labels[rows], self.device), rows)

    def _finished(self, views: Made, rows: Tensor) -> Batch:
        """A batch on the device from what `Maker` made; transforms that were carried out in part end there."""
        assert self._maker is not None
        images = []
        for transform, parts in zip(self._maker.transforms, views, strict=True):
            moved = [waits.sent(part, self.device) for part in parts]
            images.append(transform.finish(*moved) if self._maker.cuts else moved[0])
        made = images[0] if self._maker.single else tuple(images)
        return Batch(made, waits.sent(self.labels[rows], self.device), rows)


def free_cores() -> int:
    """Cores for each process of a run on this machine, but for the one that trains; 8 at most."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(min(cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")) - 1, 8), 0)


class Maker:
    """Makes images one by one, in whatever process: the key of an image seeds its augmentation."""

    def __init__(self, data: ImageSet, transforms: Sequence[Any], seed: int, *, single: bool) -> None:
        self.data, self.transforms, self.seed, self.single = data, tuple(transforms), seed, single
        self.cuts = all(isinstance(transform, CropTransform) for transform in self.transforms)

    def __call__(self, request: Request) -> Made:
        """For an epoch and rows of (index, key) the parts of each view: an image, or bytes and what finishes them."""
        epoch, pairs = request
        items = [self._cut(epoch, *pair) if self.cuts else self._whole(epoch, *pair) for pair in pairs.tolist()]
        views = [zip(*view, strict=True) for view in zip(*items, strict=True)]
        return [tuple(default_collate(list(part)) for part in view) for view in views]

    def _whole(self, epoch: int, index: int, key: int) -> list[tuple[Any, ...]]:
        image = self.data.images.read(index)
        with _own_random_numbers(np.random.SeedSequence([*b"augment", self.seed, epoch, key])):
            return [(transform(image),) for transform in self.transforms]

    def _cut(self, epoch: int, index: int, key: int) -> list[tuple[Any, ...]]:
        """All views of an image that is decoded once."""
        seed = np.random.SeedSequence([*b"augment", self.seed, epoch, key])
        rng = np.random.default_rng(seed)
        drawn: list[Any] = []

        def choose(width: int, height: int) -> list[Crop]:
            drawn[:] = [transform.draw(width, height, rng) for transform in self.transforms]
            return [crop for crop, _ in drawn]

        views = self.data.images.crops(index, choose)
        if any(transform.colour for transform in self.transforms):
            with _own_random_numbers(seed):
                views = [own.coloured(pixels) for own, pixels in zip(self.transforms, views, strict=True)]
        finishes = [torch.tensor(finish) for _, finish in drawn]
        return list(zip(map(torch.from_numpy, views), finishes, strict=True))


@contextmanager
def _own_random_numbers(sequence: np.random.SeedSequence) -> Iterator[None]:
    """Seed every generator that transforms use; the caller's random numbers do not notice."""
    seed = int(sequence.generate_state(1)[0])
    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002 - timm draws from it
    own = torch.default_generator.get_state()
    torch.default_generator.manual_seed(seed)  # of the CPU only: the loop may be drawing on a GPU
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    try:
        yield
    finally:
        torch.default_generator.set_state(own)
        random.setstate(python)
        np.random.set_state(legacy)  # noqa: NPY002
