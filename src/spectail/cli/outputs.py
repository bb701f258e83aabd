"""Where commands may write: nothing that is no ordinary file, nothing of a run, nothing that is read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

ALSO = ("fit.json", "advice.json", "advice.csv", "compare.json")
"""What commands leave in the folders of runs, beside what a run itself writes."""


def check_output(
    path: Path, endings: Sequence[str] = (), *, read: Sequence[Path] = (), flag: str = "--output", usual: str = ""
) -> None:
    """Refuse a file that a command must not write; ``usual`` is the name that it would have in a folder."""
    if path.is_dir():
        example = f", such as {path / usual}" if usual else ""
        raise ValueError(f"{flag} {path} is a folder; expected a file{example}.")
    if endings and path.suffix.lower() not in endings:
        raise ValueError(f"{flag} must end in {', '.join(endings)}; got {path.name!r}.")
    if path.is_symlink():
        raise ValueError(f"{flag} {path} is a link; name the file itself.")
    if path.exists() and not path.is_file():
        raise ValueError(f"{flag} {path} is no ordinary file; choose another name.")
    if any(path.exists() and one.exists() and path.samefile(one) for one in read):
        raise ValueError(f"{flag} {path} would replace a file that is read; choose another name.")
    if _is_of_a_run(path):
        raise ValueError(f"{flag} {path} would replace a file of a run; choose another name.")


def check_description(path: Path, keys: set[str], *, read: Sequence[Path] = ()) -> None:
    """The same for the JSON file that is written beside an output. One that is there must be a description, too."""
    check_output(path, read=read)
    if path.exists():
        try:
            content = json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError):
            content = None
        if not isinstance(content, dict) or not keys <= content.keys():
            raise ValueError(f"{path}, which is written beside the output, holds something else; choose another name.")


def check_folder(path: Path) -> None:
    """Refuse a folder that belongs to a run, for commands that put other things into theirs."""
    if path.exists() and not path.is_dir():
        raise ValueError(f"--output {path} is a file; expected a folder, or a path where one can be made.")
    if (path / "config.yaml").exists():
        raise ValueError(f"--output {path} is the folder of a run; choose another one.")


def _is_of_a_run(path: Path) -> bool:
    from ..training.run_folder import FILES  # noqa: PLC0415 - torch is slow to import

    name, folder = path.name.lower(), path.absolute().parent
    home = next((above.parent for above in (folder, *folder.parents) if above.name == "checkpoints"), None)
    if home is not None and (home / "config.yaml").exists():
        return True
    return name in (*FILES, *ALSO) and ((folder / "config.yaml").exists() or (folder / "runs.sqlite").exists())
