"""What the page says under "What you can do": the top of a run's advice, with pictures where they are at hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..diagnosis.advice import Advice, Duplicate

if TYPE_CHECKING:
    from .examples import Example
    from .run_record import RunRecord

SHOWN = 8  # of each kind
DUPLICATES = {
    "two labels": "under two labels: decide for one, and remove the others",
    "two splits": "in training and in another split: remove them from one, or the test flatters",
    "same label": "more than once in training: keep one",
}


@dataclass(frozen=True)
class AdviceView:
    """The advice of one run, as the page shows it."""

    name: str
    advice: Advice
    pictures: dict[int, Example]
    """Of images whose label should be checked, by position."""
    shown: int = SHOWN

    @property
    def summary(self) -> str:
        """What to do, in one sentence."""
        found = self.advice
        issues, pairs, more, copies = map(len, (found.label_issues, found.pairs, found.more_images, found.duplicates))
        parts = [
            *([f"check the label{_s(issues)} of {issues:,} image{_s(issues)}"] if issues else []),
            *([f"look closer at {pairs:,} pair{_s(pairs)} of classes"] if pairs else []),
            *([f"collect more images of {more:,} class{'es' if more > 1 else ''}"] if more else []),
            *([f"sort out {copies:,} image{'s that are' if copies > 1 else ' that is'} there twice"] if copies else []),
        ]
        if not parts:
            return "Nothing stands out: no label looks wrong, and no classes are mixed up more than chance explains."
        sentence = ", ".join(parts[:-1]) + (" and " if len(parts) > 1 else "") + parts[-1]
        return sentence[0].upper() + sentence[1:] + "."

    @property
    def duplicates(self) -> list[tuple[str, list[Duplicate]]]:
        """Identical images by what to do about them."""
        groups = [
            (text, [one for one in self.advice.duplicates if one.kind == kind]) for kind, text in DUPLICATES.items()
        ]
        return [(text, group) for text, group in groups if group]


def _s(number: int) -> str:
    return "" if number == 1 else "s"


def advice_views(runs: list[tuple[str, RunRecord]]) -> list[AdviceView]:
    """The advice of those runs that have some, under their names."""
    return [
        AdviceView(name, advice, _pictures(run, advice))
        for name, run in runs
        if (advice := Advice.load(run.folder)) is not None
    ]


def _pictures(run: RunRecord, advice: Advice) -> dict[int, Example]:
    """Training images with a doubtful label; none where they are not at hand, or are not those of the advice."""
    issues = advice.label_issues[:SHOWN]
    if not issues:
        return {}
    from ..data.image_set import ImageSet  # noqa: PLC0415
    from .examples import make_example  # noqa: PLC0415 - advice without pictures needs no image library

    try:
        train = run.data.train
        places = {name: label for label, name in enumerate(train.names)}
        if not isinstance(train, ImageSet) or any(
            train.labels[one.position] != places.get(one.given) for one in issues
        ):
            return {}
        return {
            one.position: make_example(train, one.position, places[one.given], places.get(one.suggested, -1))
            for one in issues
        }
    except (ValueError, OSError, ImportError, IndexError):  # the section on mistakes says why
        return {}
