"""Digests of finished files, in one small file beside them: what has changed since is said when it is read."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from .files import file_digest, write_json

NAME = "digests.json"


class Damaged(ValueError):
    """A file is not as it was written; the message names it and says what to do."""


def write_digests(folder: Path, digests: dict[str, str], **facts: str) -> None:
    """Write the SHA-256 of files of a folder by name; ``facts`` are for the folder as a whole."""
    write_json(folder / NAME, {"format": 1, "files": digests, **facts})


def text_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def read_digests(folder: Path) -> dict[str, Any] | None:
    """What the folder's digests say; None where there are none, as in folders of earlier versions."""
    path = folder / NAME
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError):
        content = None
    if isinstance(content, dict) and "format" not in content and _is_plain(content):  # of earlier checkpoints
        content = {"files": content}
    if not isinstance(content, dict) or not isinstance(content.get("files"), dict) or not content["files"]:
        raise Damaged(f"{path} is damaged. {_ADVICE}")
    return content


def verify(path: Path) -> None:
    """Refuse a file that has a digest beside it and is not as it was written."""
    known = read_digests(path.parent)
    if known is None or path.name not in known["files"] or not path.is_file():
        return
    if file_digest(path) != known["files"][path.name]:
        raise Damaged(f"{path} is not as it was written: it was damaged or edited. {_ADVICE}")


_ADVICE = f"Put a copy of the original there; if the change is meant, delete {NAME} beside it."


def _is_plain(content: dict[str, Any]) -> bool:
    return bool(content) and all(isinstance(value, str) for value in content.values())
