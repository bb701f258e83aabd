"""Paths in place of names: what lies at a path says what kind of data set it is."""

from __future__ import annotations

import difflib
from pathlib import Path

from .._utils.names import nearest
from .catalog import NAMES, known_entry

KINDS = {".csv": "list", ".tsv": "list", ".txt": "list", ".lst": "list", ".npz": "features", ".npy": "features"}
MAY_BE = (
    "A path may be a folder with a folder per class, a .csv or .txt list of images and labels, a .parquet file, or a "
    ".npz or .npy file of features."
)


def full_name(dataset: str) -> str:
    """A data set with its kind before the path: `photos` as `folder:photos`. Names of the catalogue come first.

    A folder or file that is called like one of them is written ./glyphs-lt.
    """
    if known_entry(dataset) is not None:
        return dataset
    path = Path(dataset).expanduser()
    if dataset and path.exists():
        return f"{_kind(path)}:{dataset}"
    close = difflib.get_close_matches(dataset, _beside(path), n=2, cutoff=0.6)
    raise ValueError(
        f"unknown data set {dataset!r}: there is no such name and no such path; {nearest(dataset, [*close, *NAMES])} "
        f"{MAY_BE}"
    )


def _kind(path: Path) -> str:
    if path.is_dir():
        shard = next((file for pattern in ("*.parquet", "*/*.parquet") for file in sorted(path.glob(pattern))), None)
        return "folder" if shard is None else _kind_of_parquet(shard)
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return _kind_of_parquet(path)
    if suffix not in KINDS:
        raise ValueError(f"{path} is no data set that can be read: it ends in {suffix or 'nothing'!r}. {MAY_BE}")
    return KINDS[suffix]


def _kind_of_parquet(file: Path) -> str:
    """Features if a column holds lists of numbers, else images."""
    import pyarrow.parquet as pq  # noqa: PLC0415 - slow to import, and other data do without

    from .sets.parquet_files import in_words, is_vector  # noqa: PLC0415

    schema = in_words(file, pq.read_schema)
    return "features" if any(is_vector(field.type) for field in schema) else "parquet"


def _beside(path: Path) -> list[str]:
    """What lies where the path was looked for, as the user would have written it."""
    try:
        return [str(path.parent / entry.name) for entry in path.parent.iterdir() if not entry.name.startswith(".")]
    except OSError:
        return []
