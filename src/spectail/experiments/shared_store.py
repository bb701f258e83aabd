"""A result store for several machines, on Optuna's storages: a journal file in a common folder, or a database server.

The grid is one Optuna study, and every attempt at a cell is one trial of it: RUNNING while a worker has it, COMPLETE
with results, FAIL with an error, PRUNED when it was given back or its worker died. Two properties of Optuna's storages
decide who owns a cell, and nothing else does:

- trials are created one after the other, so whoever creates trial n sees all the trials before it;
- a trial ends once: of two processes that end it, one gets ``UpdateFinishedTrialError``.

Each attempt remembers the attempt it follows (``after``). It counts only if every trial of its cell between the two
was given up, so of attempts created at the same moment the lowest number wins, and everything before an attempt that
counts has ended: at most one is running. The worker of a running attempt keeps its ``alive`` attribute in the future;
when that time has passed, anybody may end the attempt and create the next one.

(Optuna's own queue, WAITING trials that become RUNNING, would not do: a trial that failed cannot wait again, and
nothing keeps two workers from queueing the same cell.)
"""

from __future__ import annotations

import json
import math
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .record import (
    DEATHS,
    HEADER,
    PATIENCE,
    SCHEMA,
    Record,
    StoreError,
    as_json,
    check_lease,
    died,
    missing,
    newer,
    on_network,
)

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

STUDY = "spectail-experiments"
VERSION = "spectail-store"
CHUNK = 30_000
"""Characters of JSON per attribute: MySQL holds 65,535 bytes, and quoting may double them."""
TRIES = 6
"""Openings of a new database: processes that create the same tables at once disturb each other."""


class SharedStore:
    """A result store on an Optuna storage; see :class:`~spectail.experiments.record.Store`.

    Args:
        where: ``journal:FILE``, or a database URL such as ``postgresql://user@host/name``.
        create: make what is missing; otherwise a missing store is an error.
    """

    def __init__(self, where: str, *, create: bool = True) -> None:
        try:
            import optuna  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise StoreError(
                f"a store for several machines needs the package {error.name!r}: pip install 'spectail[experiments]'"
            ) from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._states = optuna.trial.TrialState
        self._ended = optuna.exceptions.UpdateFinishedTrialError
        self._new_trial = optuna.trial.create_trial
        self._lock = threading.RLock()
        self._held: dict[tuple[str, str], int] = {}  # attempts won here: no need to read everything to renew one
        self.name = where if where.startswith("journal:") else _without_password(where)
        file = _file(where)
        self._journal = file if where.startswith("journal:") else None
        if file is not None and not file.exists():
            if not create:
                raise missing(self.name)
            file.parent.mkdir(parents=True, exist_ok=True)
        elif file is not None:
            _check_kind(file, self.name)
        with self._said():
            self._storage, self._engine = _open_journal(self._journal) if self._journal else _open_url(where, create)
            try:
                self._study = self._find_study(create)
            except BaseException:
                self.close()
                raise

    def claim(self, key: str, about: dict[str, Any], worker: str, *, lease: float = 120.0, retry: bool = False) -> bool:
        check_lease(lease)
        text = as_json(about, "description", key)
        with self._lock, self._said():
            trials = self._trials(key)
            last = _last(trials)
            self._clear_strays(trials, last)
            if last is not None and not self._may_follow(last, trials, retry):
                return False
            now = time.time()
            attributes = {"key": key, "worker": worker, "after": -1 if last is None else last.number}
            attributes |= {"alive": now + lease, "started": now, **_split("about", text)}
            trial = self._storage.create_new_trial(
                self._study, self._new_trial(state=self._states.RUNNING, user_attrs=attributes)
            )
            winner = _last(self._trials(key))
            if winner is not None and winner._trial_id == trial and winner.state == self._states.RUNNING:
                self._held[key, worker] = trial
                return True
            self._end(trial, self._states.PRUNED, {"end": "duplicate"})
            return False

    def renew(self, key: str, worker: str, *, lease: float = 120.0) -> bool:
        check_lease(lease)
        with self._lock, self._said():
            return self._mine(key, worker, lambda trial: self._note(trial, {"alive": time.time() + lease}))

    def finish(self, key: str, worker: str, results: dict[str, Any], folder: str) -> bool:
        text = as_json({"results": results, "folder": folder}, "results", key)
        overall = results.get("overall")  # as the trial's value, so that Optuna's own tools can show it
        values = [float(overall)] if isinstance(overall, int | float) and math.isfinite(overall) else None
        with self._lock, self._said():
            notes = _split("results", text)
            return self._mine(key, worker, lambda trial: self._end(trial, self._states.COMPLETE, notes, values))

    def fail(self, key: str, worker: str, error: str) -> bool:
        with self._lock, self._said():
            notes = _split("error", json.dumps(error))
            return self._mine(key, worker, lambda trial: self._end(trial, self._states.FAIL, notes))

    def release(self, key: str, worker: str) -> bool:
        with self._lock, self._said():
            return self._mine(key, worker, lambda trial: self._end(trial, self._states.PRUNED, {"end": "released"}))

    def records(self, keys: Iterable[str] | None = None) -> dict[str, Record]:
        with self._lock, self._said():
            known = self._all()
            now = time.time()
            wanted = sorted(known) if keys is None else [key for key in dict.fromkeys(keys) if key in known]
            found = ((key, self._record(key, known[key], now)) for key in wanted)
            return {key: record for key, record in found if record is not None}

    def forget(self, keys: Iterable[str]) -> int:
        """Trials cannot be deleted: a note says up to which number they no longer count."""
        count = 0
        with self._lock, self._said():
            for key in dict.fromkeys(keys):
                trials = self._trials(key)
                last = _last(trials)
                if last is not None and not last.state.is_finished():
                    if last.user_attrs["alive"] > time.time() or not self._end(last._trial_id, self._states.PRUNED):
                        continue
                    trials = self._trials(key)
                    last = _last(trials)
                if last is None:
                    continue
                # later attempts may be on their way: only what has ended is forgotten
                running = [trial.number for trial in trials if not trial.state.is_finished()]
                number = max(trial.number for trial in trials if trial.number < min(running, default=math.inf))
                note = self._new_trial(state=self._states.PRUNED, user_attrs={"key": key, "forgotten": number})
                self._storage.create_new_trial(self._study, note)
                count += 1
        return count

    def close(self) -> None:
        with self._lock:
            self._storage.remove_session()
            if self._engine is not None:
                self._engine.dispose()

    def _all(self) -> dict[str, list[FrozenTrial]]:
        """Attempts by key, in the order of their numbers, without those that are forgotten or lost the race."""
        known: dict[str, list[FrozenTrial]] = {}
        for trial in self._storage.get_all_trials(self._study, deepcopy=False):
            key = trial.user_attrs.get("key")
            if key is None:
                continue  # not of this program
            if "forgotten" in trial.user_attrs:
                upto = trial.user_attrs["forgotten"]
                known[key] = [other for other in known.get(key, []) if other.number > upto]
            elif not (trial.state.is_finished() and trial.user_attrs.get("end") == "duplicate"):
                known.setdefault(key, []).append(trial)
        return known

    def _trials(self, key: str) -> list[FrozenTrial]:
        return self._all().get(key, [])

    def _may_follow(self, last: FrozenTrial, trials: list[FrozenTrial], retry: bool) -> bool:
        """Whether a new attempt may be made after the last one, which is ended if its worker is gone."""
        if last.state == self._states.COMPLETE:
            return False
        if last.state == self._states.FAIL:
            return retry
        if last.state == self._states.PRUNED:
            return True
        if last.user_attrs["alive"] > time.time():
            return False
        if self._deaths(trials) + 1 >= DEATHS:
            error = _split("error", json.dumps(died(last.user_attrs["worker"])))
            self._end(last._trial_id, self._states.FAIL, error)
            return False
        return self._end(last._trial_id, self._states.PRUNED)

    def _deaths(self, trials: list[FrozenTrial]) -> int:
        """Attempts since the last failure that ended without a word."""
        failed = max((trial.number for trial in trials if trial.state == self._states.FAIL), default=-1)
        later = (trial for trial in trials if trial.number > failed and trial.state == self._states.PRUNED)
        return sum("end" not in trial.user_attrs for trial in later)

    def _clear_strays(self, trials: list[FrozenTrial], last: FrozenTrial | None) -> None:
        """End attempts that lost a race and whose workers died before they could; they would block a retry."""
        now = time.time()
        for trial in trials:
            if trial is not last and not trial.state.is_finished() and trial.user_attrs["alive"] <= now:
                self._end(trial._trial_id, self._states.PRUNED, {"end": "duplicate"})

    def _mine(self, key: str, worker: str, act: Callable[[int], bool]) -> bool:
        """Do something to the attempt of a worker, if there is one that has not ended."""
        held = self._held.get((key, worker))
        if held is not None and act(held):
            return True
        self._held.pop((key, worker), None)
        last = _last(self._trials(key))  # of a process before, perhaps, with the same name
        if last is None or last.state.is_finished() or last.user_attrs["worker"] != worker:
            return False
        return act(last._trial_id)

    def _note(self, trial: int, notes: dict[str, Any]) -> bool:
        try:
            for name, value in notes.items():
                self._storage.set_trial_user_attr(trial, name, value)
        except self._ended:
            return False
        return True

    def _end(
        self, trial: int, state: Any, notes: dict[str, Any] | None = None, values: list[float] | None = None
    ) -> bool:
        """Notes first, since a trial that has ended cannot be changed. False: somebody else ended it."""
        if not self._note(trial, notes or {}):
            return False
        try:
            return self._storage.set_trial_state_values(trial, state, values)
        except self._ended:
            return False

    def _record(self, key: str, trials: list[FrozenTrial], now: float) -> Record | None:
        last = _last(trials)
        if last is None:
            return None
        notes, state = last.user_attrs, last.state
        about, attempts = json.loads(_joined("about", notes)), len(trials)
        if state == self._states.PRUNED:
            return Record(key, about, "waiting", None, attempts, None, None, None, None, None)
        worker, started = notes["worker"], notes["started"]
        if state == self._states.RUNNING:
            status = "running" if notes["alive"] > now else "lost"
            return Record(key, about, status, worker, attempts, started, None, None, None, None)
        finished = last.datetime_complete.timestamp() if last.datetime_complete else None
        if state == self._states.FAIL:
            error = json.loads(_joined("error", notes))
            return Record(key, about, "failed", worker, attempts, started, finished, None, None, error)
        known = json.loads(_joined("results", notes))
        results, folder = known["results"], known["folder"]
        return Record(key, about, "done", worker, attempts, started, finished, results, folder, None)

    def _find_study(self, create: bool) -> int:
        import optuna  # noqa: PLC0415

        try:
            study = self._storage.get_study_id_from_name(STUDY)
        except KeyError:
            if not create:
                raise missing(self.name) from None
            try:
                study = self._storage.create_new_study([optuna.study.StudyDirection.MAXIMIZE], STUDY)
            except optuna.exceptions.DuplicatedStudyError:  # another process was first
                study = self._storage.get_study_id_from_name(STUDY)
        found = self._storage.get_study_user_attrs(study).get(VERSION)
        if found is None and create:
            self._storage.set_study_user_attr(study, VERSION, SCHEMA)
        elif not isinstance(found, int) or found > SCHEMA:
            raise newer(self.name, found)
        return study

    @contextmanager
    def _said(self) -> Iterator[None]:
        """Errors of storages as one sentence."""
        import optuna  # noqa: PLC0415
        import sqlalchemy.exc  # noqa: PLC0415

        try:
            yield
        except StoreError:
            raise
        except (ValueError, KeyError, TypeError, AssertionError) as error:
            line = _broken_line(self._journal) if self._journal else None
            what = f"line {line} of it is broken" if line else f"{type(error).__name__}: {error}"
            cure = f"delete line {line}" if line else "move it away"
            raise StoreError(f"the result store {self.name} is damaged ({what}); {cure} and run again.") from error
        except (optuna.exceptions.OptunaError, sqlalchemy.exc.SQLAlchemyError, RuntimeError, ImportError) as error:
            reason = str(getattr(error.__cause__ or error, "orig", None) or error).strip().splitlines()[0]
            raise StoreError(
                f"the result store {self.name} cannot be used ({reason}); check its address, that the database "
                "answers, and that its Python driver is installed."
            ) from error


def _last(trials: list[FrozenTrial]) -> FrozenTrial | None:
    """The latest attempt that counts: every trial between it and the one it follows was given up."""
    found = None
    for place, trial in enumerate(trials):
        between = (other for other in trials[:place] if other.number > trial.user_attrs["after"])
        if all(other.state.name == "PRUNED" for other in between):
            found = trial
    return found


def _split(name: str, text: str) -> dict[str, str]:
    """Attributes ``name 0``, ``name 1``, ... that together hold a text; each begins with how many there are."""
    pieces = [text[start : start + CHUNK] for start in range(0, len(text), CHUNK)]
    return {f"{name} {number}": f"{len(pieces)}:{piece}" for number, piece in enumerate(pieces)}


def _joined(name: str, notes: dict[str, Any]) -> str:
    count = int(notes[f"{name} 0"].partition(":")[0])
    return "".join(notes[f"{name} {number}"].partition(":")[2] for number in range(count))


def _file(where: str) -> Path | None:
    """The file of a journal or an SQLite database; None for a server."""
    kind, _, path = where.partition(":///" if where.startswith("sqlite") else ":")
    if kind != "journal" and not kind.startswith("sqlite"):
        return None
    if not path or path == ":memory:":
        raise StoreError(f"{where} names no file; write journal:FILE or sqlite:///FILE.")
    return Path(path).absolute()


def _check_kind(file: Path, name: str) -> None:
    """Nothing is written into a file that is something else."""
    with file.open("rb") as opened:
        start = opened.read(1 << 16)
    if name.startswith("journal:"):
        if start and not (start.startswith(b"{") and b'"op_code"' in start):
            raise StoreError(f"{file} is not an Optuna journal; choose another file, or move this one away.")
    elif start and not start.startswith(HEADER):
        raise StoreError(f"{file} is not an SQLite file; choose another file, or move this one away.")
    elif b"CREATE TABLE spectail_store" in start:
        raise StoreError(f"{file} is a store without Optuna; give its path alone, without sqlite:///.")


def _broken_line(journal: Path) -> int | None:
    """Number of the first line that is no JSON: what a full disk leaves. No process has ever acted on it."""
    with journal.open("rb") as opened:
        for number, line in enumerate(opened, start=1):
            try:
                json.loads(line)
            except ValueError:
                return number
    return None


def _open_journal(file: Path) -> tuple[BaseStorage, Any]:
    from optuna.storages import JournalStorage  # noqa: PLC0415
    from optuna.storages.journal import JournalFileBackend  # noqa: PLC0415

    # an absolute path: the lock file beside it is a link to it
    return JournalStorage(JournalFileBackend(str(file))), None


def _open_url(url: str, create: bool) -> tuple[BaseStorage, Any]:
    import optuna  # noqa: PLC0415
    import sqlalchemy.exc  # noqa: PLC0415

    sqlite = url.startswith("sqlite")
    options = {"connect_args": {"timeout": PATIENCE}} if sqlite else {"pool_pre_ping": True}
    kinds = sqlalchemy.exc
    disturbed: tuple[type[Exception], ...] = (kinds.OperationalError, kinds.ProgrammingError, kinds.IntegrityError)
    disturbed += (optuna.exceptions.StorageInternalError, AssertionError)
    for attempt in range(TRIES):
        try:
            storage = optuna.storages.RDBStorage(url, engine_kwargs=options, skip_table_creation=not create)
            break
        except disturbed:
            if attempt == TRIES - 1 or not create:
                raise
            time.sleep(0.1 * 1.7**attempt)
    if sqlite:
        _look_under_lock(storage.engine, local=not on_network(Path(storage.engine.url.database or ".").parent))
    return optuna.storages.get_storage(storage), storage.engine  # ended trials are then read once


def _look_under_lock(engine: Any, local: bool) -> None:
    """SQLite has no row locks, so between Optuna's look at a state and its change another process could slip in."""
    from sqlalchemy import event  # noqa: PLC0415

    @event.listens_for(engine, "connect")
    def connect(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # the driver would begin its transactions later
        if local:
            with suppress(sqlite3.OperationalError):
                connection.execute("PRAGMA journal_mode = WAL")

    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    engine.dispose()  # connections made before


def _without_password(url: str) -> str:
    from sqlalchemy.engine import make_url  # noqa: PLC0415
    from sqlalchemy.exc import ArgumentError  # noqa: PLC0415

    try:
        return make_url(url).render_as_string(hide_password=True)
    except (ArgumentError, ValueError):
        kind = url.partition(":")[0]
        raise StoreError(
            f"the address of a shared store starting {kind}:// cannot be read; write "
            "postgresql://user:password@host/name, mysql+pymysql://..., or journal:FILE."
        ) from None
