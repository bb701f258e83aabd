"""Features in place of images: `FeatureSet` is what heads are trained on, `FeatureCache` keeps those of a backbone.

The cache knows features by what their images show: another cut of a data set, or other validation data of the same
cut, computes only what was never seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .._utils.files import array_digest, cache_folder, is_sealed, keep_in_cache
from ..counts import ClassCounts

Compute = Callable[[NDArray[np.int64]], NDArray[Any]]


class FeatureSet:
    """Features (N, D) with labels and class names: what an `ImageSet` is for images.

    Args:
        rows: where each row stands in the file that it comes from; by default 0, 1, 2, ...
    """

    pixels = None
    unit = "rows"

    def __init__(
        self,
        features: Tensor,
        labels: NDArray[np.int64],
        names: Sequence[str],
        rows: NDArray[np.int64] | None = None,
    ) -> None:
        if features.ndim != 2 or len(features) != len(labels):
            raise ValueError(
                f"features must be (N, D) with one label each; got {tuple(features.shape)}, {len(labels)}."
            )
        self.features, self.labels, self.names = features, np.asarray(labels, dtype=np.int64), tuple(names)
        self.rows = np.arange(len(labels)) if rows is None else rows

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.features[index], int(self.labels[index])

    @property
    def counts(self) -> ClassCounts:
        return ClassCounts(np.bincount(self.labels, minlength=len(self.names)), self.names)

    def subset(self, indices: NDArray[Any]) -> FeatureSet:
        """The samples at ``indices`` (positions or a mask), in that order."""
        chosen = torch.from_numpy(np.asarray(indices))
        return FeatureSet(self.features[chosen], self.labels[indices], self.names, self.rows[indices])

    def with_classes(self, labels: NDArray[np.int64], names: Sequence[str]) -> FeatureSet:
        """The same samples under other labels and class names."""
        return FeatureSet(self.features, labels, names, self.rows)

    def with_features(self, features: Tensor) -> FeatureSet:
        """The same samples with other features."""
        return FeatureSet(features, self.labels, self.names, self.rows)

    def name_of(self, index: int) -> str:
        """What to call a sample in messages, manifests and reports."""
        return f"row {self.rows[index]}"

    def sample_names(self) -> list[str]:
        """Names of all samples: where they stand in the file."""
        return [f"row {row}" for row in self.rows.tolist()]

    def index_digest(self) -> str | None:
        """None: the digests of the rows themselves are always known."""
        return None

    def digests(self) -> NDArray[np.uint64]:
        """A digest of each row: equal rows have equal digests."""
        values = np.ascontiguousarray(self.features.cpu().numpy())
        return np.array([int.from_bytes(blake2b(row.data, digest_size=8).digest(), "big") for row in values], np.uint64)


class FeatureCache:
    """Rows of features by the digest of their image. Every file holds images that no earlier one has.

    Args:
        name: stands for backbone, weights, transform and precision: whatever changes a feature.
    """

    def __init__(self, name: str) -> None:
        self.folder = cache_folder() / "features" / name

    def rows(self, images: NDArray[np.uint64], compute: Compute) -> NDArray[Any]:
        """Features of these images, in order. ``compute`` makes those at the given positions that are not known."""
        distinct, first, places = np.unique(images, return_index=True, return_inverse=True)
        known = np.zeros(len(distinct), dtype=bool)
        parts: list[tuple[NDArray[Any], NDArray[Any]]] = []
        for has, features in self._files():
            at = np.searchsorted(has, distinct).clip(max=len(has) - 1)
            hits = (has[at] == distinct) & ~known
            if hits.any():
                parts.append((np.flatnonzero(hits), features[at[hits]]))
                known |= hits
        if not known.all():
            missing = np.flatnonzero(~known)
            missing = missing[np.argsort(first[missing])]  # in stored order, which is the fastest to read
            made = compute(first[missing])
            order = np.argsort(distinct[missing])
            new, rows = distinct[missing][order], made[order]
            path = self.folder / f"{array_digest(new)[:32]}.npz"
            keep_in_cache(path, lambda file: np.savez(file, images=new, features=rows))
            parts.append((missing, made))
        found = np.empty((len(distinct), parts[0][1].shape[1]), dtype=parts[0][1].dtype)
        for where, features in parts:
            found[where] = features
        return found[places]

    def fill(
        self, images: NDArray[np.uint64], compute: Compute, rank: int, world_size: int, meet: Callable[[], None]
    ) -> None:
        """Compute what is not known yet, each rank its share of it. ``meet`` waits until all ranks have come there."""
        _, first = np.unique(images, return_index=True)
        first.sort()
        known = np.zeros(len(first), dtype=bool)
        for has, _ in self._files():
            known |= np.isin(images[first], has)
        own = first[~known][rank::world_size]
        meet()  # all have looked before anybody writes
        if len(own):
            self.rows(images[own], lambda at: compute(own[at]))
        meet()

    def _files(self) -> Iterator[tuple[NDArray[np.uint64], NDArray[Any]]]:
        """Digests in order, and their features. A damaged file is passed over: its images are computed again."""
        for path in sorted(self.folder.glob("*.npz")):
            if is_sealed(path):
                with np.load(path, allow_pickle=False) as file:
                    yield file["images"], file["features"]
