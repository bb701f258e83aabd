"""Loader: batches in a given order, the same whatever the number of workers or ranks, and resumable inside an epoch."""

from __future__ import annotations

import atexit
import random
import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch._utils import ExceptionWrapper
from torch.utils.data import DataLoader, Dataset, default_collate, get_worker_info
from torch.utils.data._utils import signal_handling

from .._core import waits
from .batch import Batch
from .batch_transforms import BatchTransform
from .feature_set import FeatureSet
from .image_set import ImageSet
from .images import BrokenImage
from .samplers import DeferredSampler, LongTailSampler
from .transforms import Preset, Views

LOST = r"DataLoader worker \(pid\S* ([\d, ]+)\) (is killed by signal: [^.]*|exited unexpectedly)"
"""How torch says that a worker died."""


@dataclass
class Failure:
    """What a living process that reads images met; it is handed over in place of a batch, to be raised here."""

    error: BrokenImage | ExceptionWrapper


class WorkerLost(OSError):
    """A process that reads images has died."""


class Loader:
    """Batches of an image set, for training with a sampler or in stored order for evaluation.

    Small images held in memory go through the preset's batch transform: no worker, no Python per image. All others are
    decoded and transformed one by one in ``workers`` processes.

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
        workers: processes that decode images which are not in memory.
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
        workers: int = 0,
        seed: int = 0,
        drop_last: bool = False,
        images: bool = True,
        rank: int = 0,
        world_size: int = 1,
        device: torch.device | str = "cpu",
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be 1 or more; got {batch_size}.")
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
        self._transform: Any = None if views is None else Views(views)
        self._fast: BatchTransform | None = None
        if preset is not None and views is None:
            self._transform = preset.test if sampler is None else preset.train
            fast = preset.batch_test if sampler is None else preset.batch_train
            if fast is not None and data.pixels is not None and data.pixels.shape[1:3] == (fast.size, fast.size):
                self._fast = fast
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
        for start, batch in zip(starts, self._batches(order, starts), strict=True):
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
        here = (self.epoch, self.position)
        again = self._fetched[1] + 1 if self._fetched[0] == here else 0  # several micro-batches may ask at one place
        self._fetched = here, again
        if isinstance(self.data, FeatureSet) or self._fast is not None:
            seed = [*b"fetch", self.seed, self.epoch, self.position, again]
            return self._at_once(rows, len(rows) * self.world_size, seed)
        seeded = _Seeded(self.data, self._transform, self.seed, self.epoch)
        first = self.length * (1 + again) + self.position  # beyond the keys of the stream
        keys = first + self.rank + self.world_size * np.arange(len(rows))
        return self._moved(_collate([seeded[pair] for pair in zip(rows.tolist(), keys.tolist(), strict=True)]))

    def _batches(self, order: NDArray[np.int64], starts: range) -> Iterator[Batch]:
        if not self.images or isinstance(self.data, FeatureSet) or self._fast is not None:
            return (self._in_order(order, start) for start in starts)
        loader = DataLoader(
            _Seeded(self.data, self._transform, self.seed, self.epoch if self.sampler is not None else 0),
            batch_sampler=self._keyed(order, starts),
            num_workers=self.workers,
            collate_fn=_collate,
            pin_memory=self.device.type == "cuda",
            generator=torch.Generator(),  # else it would draw from the loop's
            worker_init_fn=_deaf,
        )
        return self._read(loader)

    def _keyed(self, order: NDArray[np.int64], starts: range) -> Iterator[list[tuple[int, int]]]:
        """This rank's (index, key) pairs of each batch, made when they are asked for."""
        keys = np.arange(len(order))
        for start in starts:
            yield list(zip(self._share(order, start).tolist(), self._share(keys, start).tolist(), strict=True))

    def _read(self, loader: DataLoader[Any]) -> Iterator[Batch]:
        with _no_alarm():
            batches: Any = iter(loader)
        if self.workers:
            _OPEN.add(batches)
        try:
            while (batch := self._next(batches)) is not None:
                yield self._moved(batch)
        finally:
            if self.workers:
                batches._shutdown_workers()
                _OPEN.discard(batches)

    def _next(self, batches: Iterator[Any]) -> Any:
        try:
            return next(batches, None)
        except (RuntimeError, OSError, EOFError) as error:
            how = _death(error) if self.workers else None
            if how is None:
                raise
            raise WorkerLost(
                f"a process that reads images {how}, which mostly means that memory ran out. Repeat the command "
                "with a smaller --workers (0 reads in the main process), with --resume if it was a run."
            ) from None

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
            draws = None
            if seed is not None:
                draws = self._fast.draws(size, np.random.default_rng(seed))[self.rank :: self.world_size]
            made = self._fast(self._stored, rows, draws)
        return Batch(made, waits.sent(self.labels[rows], self.device), rows)

    def _moved(self, batch: Batch | Failure) -> Batch:
        if isinstance(batch, Failure):
            if isinstance(batch.error, BrokenImage):
                raise batch.error
            return batch.error.reraise()  # type: ignore[no-any-return, no-untyped-call]
        views = batch.images if isinstance(batch.images, tuple) else (batch.images,)
        moved = tuple(waits.sent(view, self.device) for view in views)
        images = moved if isinstance(batch.images, tuple) else moved[0]
        return Batch(images, waits.sent(batch.labels, self.device), batch.indices)


@contextmanager
def _no_alarm() -> Iterator[None]:
    """Undo the handler with which torch raises the death of a worker wherever the program is, even in mid-step.

    Without it torch notices within five seconds, when it waits for a batch of that worker. Torch sets its handler once
    in a process, so a loader of somebody else may have set it before.
    """
    before = signal.getsignal(signal.SIGCHLD)
    yield
    if threading.current_thread() is threading.main_thread() and _raises_deaths(signal.getsignal(signal.SIGCHLD)):
        own = before is None or _raises_deaths(before)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL if own else before)


def _raises_deaths(handler: Any) -> bool:
    return getattr(handler, "__module__", None) == signal_handling.__name__


def _death(error: Exception) -> str | None:
    """How a worker died, if that is what an error means. What a living one met comes as a batch: see `Failure`."""
    lost = re.search(LOST, str(error))
    if lost is not None:
        return f"(pid {lost[1]}) {lost[2]}"
    pipe_broke = isinstance(error, ConnectionError | EOFError | FileNotFoundError)
    return "ended while it handed over a batch" if pipe_broke else None


def _deaf(worker: int) -> None:
    """Signals to stop often go to all processes of a job. The main one acts on them; its workers must last as long."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


_OPEN: set[Any] = set()
"""What reads with workers. Held here until it is closed: the garbage collector would close the queues through which
workers are sent home before anybody sends them."""


@atexit.register
def _close() -> None:
    """Send workers home before multiprocessing waits for them: they do not hear the signal that it sends."""
    for batches in list(_OPEN):
        batches._shutdown_workers()


class _Seeded(Dataset[Any]):
    """Images by (position, key): the key seeds the augmentation, so it does not matter which worker does it."""

    def __init__(self, data: ImageSet, transform: Callable[[Any], Any], seed: int, epoch: int) -> None:
        self.data, self.transform, self.seed, self.epoch = data, transform, seed, epoch

    def __getitem__(self, item: tuple[int, int]) -> tuple[Any, int, int] | Failure:
        """An error is handed over in place of the image: the main process tells it from the death of a worker."""
        index, key = item
        seed = int(np.random.SeedSequence([*b"augment", self.seed, self.epoch, key]).generate_state(1)[0])
        try:
            image = self.data.images.read(index)
            with _own_random_numbers(seed):
                made = self.transform(image)
        except BrokenImage as error:
            return Failure(error)  # said without the worker's traceback
        except Exception:
            if get_worker_info() is None:
                raise
            return Failure(ExceptionWrapper(where="in a process that reads images"))  # type: ignore[no-untyped-call]
        return made, int(self.data.labels[index]), index


@contextmanager
def _own_random_numbers(seed: int) -> Iterator[None]:
    """Seed every generator that transforms use; the caller's random numbers do not notice."""
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


def _collate(items: list[tuple[Any, int, int] | Failure]) -> Batch | Failure:
    for item in items:
        if isinstance(item, Failure):
            return item
    images, labels, indices = default_collate(items)
    return Batch(tuple(images) if isinstance(images, list) else images, labels, indices)
