"""The driver of a plan: hands what is missing to an engine and writes down what comes back. There is one per index."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from .engines import Engine, EngineOptions, Say
from .index import Index, Record, last_line
from .runs import key_of
from .task import Outcome, Task

ALIKE = 3  # runs that fail with the same error before the rest is given up


def make_engine(options: EngineOptions, device: str, say: Say) -> Engine:
    options.check()
    if options.engine == "ray":
        from .cluster import RayEngine  # noqa: PLC0415 - ray is an extra

        return RayEngine(options, device, say)
    from .local import LocalEngine  # noqa: PLC0415

    return LocalEngine(options, device)


@dataclass
class Tally:
    """What became of a plan."""

    done: int = 0
    kept: int = 0
    """Runs that were finished before."""
    left: int = 0
    """Runs that were left out, since their data or weights cannot be used."""
    failures: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Runs that failed, now or earlier, by name: their titles, and why."""
    no_data: dict[str, Outcome] = field(default_factory=dict)
    """Data that cannot be used."""


class Driver:
    """Carries a plan out: trains what the index does not have, and nothing twice.

    Whether a run is done depends on its images, which only a process that has loaded them knows. So each data set is
    identified once if the index has runs of it, and a run that trains tells its identity itself.
    """

    def __init__(
        self, index: Index, engine: Engine, say: Say, *, retry: bool = False, retries: int = 2,
        settled: Callable[[bool], None] = lambda trained: None,
    ) -> None:  # fmt: skip
        self.index, self.engine, self.say, self.settled = index, engine, say, settled
        self.retry, self.retries = retry, retries
        self.tally = Tally()
        self.outcomes: dict[str, Outcome] = {}
        """By the name of a run: what came of it in this session, or its results of an earlier one."""
        self.no_weights: set[str] = set()
        self.alike: Counter[str] = Counter()
        """How many runs of this session failed with an error."""

    def work(self, tasks: Iterable[Task]) -> Tally:
        records: dict[str, list[Record]] = {}
        for record in self.index.records():
            if record.status == "running":  # nobody else trains
                continue
            records.setdefault(record.about["name"] + record.about["code"], []).append(record)
        plan = [(task, records.get(task.name + task.code, [])) for task in tasks]
        identities = self._identified({data_of(task): task for task, known in plan if known})
        waiting = deque(task for task, known in plan if not self._is_settled(task, known, identities))
        self.attempts = {record.key: record.attempts for known in records.values() for record in known}
        for task, outcome in self.engine.carry_out(waiting, self._begin):
            again = self._settle(task, outcome)
            if again is not None:
                waiting.append(again)
            for other in [other for other in waiting if self._is_hopeless(other)]:
                waiting.remove(other)
                self._leave_out()
        return self.tally

    def _identified(self, first: dict[str, Task]) -> dict[str, str]:
        """The identity of each data set, by one process each."""
        tasks = deque(replace(task, only_identify=True) for task in first.values())
        found = {}
        for task, outcome in self.engine.carry_out(tasks, lambda task: None):
            if outcome.status == "known":
                found[data_of(task)] = outcome.identity
            elif outcome.status == "no data":
                self._say_no_data(task, outcome)
        return found

    def _is_settled(self, task: Task, known: list[Record], identities: dict[str, str]) -> bool:
        """Whether nothing is to be done for a run: it is finished, or failed earlier, or its data are missing."""
        if self._is_hopeless(task):
            self._leave_out()
            return True
        keys = {key_of(task.name, identity, task.code) for identity in ("", identities.get(data_of(task), ""))}
        record = next((record for record in known if record.key in keys), None)  # one that died has no identity
        if record is None or (record.status == "failed" and self.retry):
            return False
        if record.status == "done" and not task.words and not task.config.output.exists():
            return False  # its folder is not named by its content, so that it may be gone
        if record.status == "done":
            self.tally.kept += 1
            self.outcomes[task.name] = Outcome("done", record.about["data"], record.results, record.folder)
        else:
            self._fail(task, f"{last_line(record.error)} (earlier; --retry tries it again)")
        self.settled(False)
        return True

    def _begin(self, task: Task) -> None:
        key = key_of(task.name, "", task.code)
        self.index.put(Record(key, self._about(task, ""), "running", task.attempt, started=time.time()))

    def _settle(self, task: Task, outcome: Outcome) -> Task | None:
        """Write down what came of a task; the task again where its process died and there is hope."""
        begun = key_of(task.name, "", task.code)
        if outcome.status == "stopped":
            self.index.forget([begun])
            return None
        if outcome.status == "died" and task.attempt <= self.retries:
            self.index.forget([begun])
            self.say(f"{task.title}: trying again: {last_line(outcome.error)}")
            return replace(task, attempt=task.attempt + 1)
        if outcome.status in ("no data", "no weights"):
            self.index.forget([begun])
            if outcome.status == "no data":
                self._say_no_data(task, outcome)
            elif task.config.model.model not in self.no_weights:
                self.no_weights.add(task.config.model.model)
                self.say(f"left out, all runs of {task.config.model.model}: {outcome.error}")
            self._leave_out()
            return None
        key = key_of(task.name, outcome.identity, task.code)
        record = Record(key, self._about(task, outcome.identity), "done" if outcome.status == "done" else "failed",
                        self.attempts.get(key, 0) + task.attempt, finished=time.time(), results=outcome.results,
                        folder=outcome.folder, error=outcome.error or None)  # fmt: skip
        self.index.put(record, replacing=begun)
        self.outcomes[task.name] = outcome
        if outcome.results is not None:
            self.tally.done += 1
            said = "passed" if task.rehearse else f"overall {outcome.results['overall']:.1f}"
            self.say(f"{task.title}: {said}, {outcome.results['seconds']:.0f} s")
        else:
            after = f" (after {task.attempt} attempts)" if task.attempt > 1 else ""
            self._fail(task, last_line(outcome.error) + after)
            self.alike[outcome.error] += 1
            if self._is_systematic() and self.alike[outcome.error] == ALIKE:
                self.say(f"the first {ALIKE} runs failed with the same error; the others are left out")
        self.settled(True)
        return None

    def _fail(self, task: Task, reason: str) -> None:
        self.tally.failures[task.name] = (task.title, reason)
        self.say(f"failed: {task.title}")  # why is said at the end, where it is seen

    def _about(self, task: Task, identity: str) -> dict[str, object]:
        return {"name": task.name, "data": identity, "code": task.code} | task.about

    def _is_hopeless(self, task: Task) -> bool:
        model = task.config.model
        weights = model.pretrained and model.init is None and model.model in self.no_weights
        return weights or data_of(task) in self.tally.no_data or self._is_systematic()

    def _is_systematic(self) -> bool:
        """Whether nothing has succeeded, and one error has ended several runs: it would end the others too."""
        return not (self.tally.done or self.tally.kept) and max(self.alike.values(), default=0) >= ALIKE

    def _leave_out(self) -> None:
        self.tally.left += 1
        self.settled(False)

    def _say_no_data(self, task: Task, outcome: Outcome) -> None:
        if data_of(task) not in self.tally.no_data:
            self.tally.no_data[data_of(task)] = outcome
            what = "is not there" if outcome.absent else "cannot be used"
            self.say(f"left out, {task.config.data.dataset} {what}: {outcome.error}")


def data_of(task: Task) -> str:
    return repr(task.config.data)
