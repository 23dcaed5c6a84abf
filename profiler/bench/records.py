"""The file of results: JSON lines, each written whole and flushed when its case has ended. See docs/benchmarks.md."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from molprof.common.errors import RunError, UsageError
from molprof.common.files import check_output
from molprof.profiler.bench.answers import OK

if TYPE_CHECKING:
    from molprof.profiler.cluster.status import JobStatus

SCHEMA = 1
_ID_LETTERS = 12


def environment_id(environment: Mapping[str, Any]) -> str:
    """Twelve hexadecimal digits that stand for hardware and versions."""
    text = json.dumps(environment, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_ID_LETTERS]


@dataclass(frozen=True)
class Done:
    """What a file already holds.

    Attributes:
        environments: hardware and versions by id.
        ended: (case, environment) -> repeat -> status.
        results: result lines in all.
    """

    environments: Mapping[str, Mapping[str, Any]]
    ended: dict[tuple[str, str], dict[int, str]]
    results: int

    def has(self, case: str, environment: str, repeat: int, again: bool) -> bool:
        """Whether that repeat need not run: it has, or another one ended in a way that a repeat would not change.

        Args:
            again: cases that were not ok run once more.
        """
        ended = self.ended.get((case, environment), {})
        if ended.get(repeat) == OK:
            return True
        return not again and any(status != OK for status in ended.values())

    def good(self, cases: Iterable[str]) -> bool:
        """Whether it holds figures of any of the cases."""
        wanted = set(cases)
        return any(case in wanted and OK in repeats.values() for (case, _), repeats in self.ended.items())

    def elsewhere(self, cases: Collection[str], environment: Mapping[str, Any]) -> dict[str, tuple[int, str]]:
        """What it holds of the cases in other environments: results and how that environment differs, by its id."""
        here = environment_id(environment)
        counts: dict[str, int] = {}
        for (case, other), repeats in self.ended.items():
            if case in cases and other != here:
                counts[other] = counts.get(other, 0) + len(repeats)
        found = {}
        for other, count in counts.items():
            known = self.environments.get(other, {})
            names = [name for name in environment if name in known and known[name] != environment[name]]
            parts = (f"{name} {known[name]}, here {environment[name]}" for name in names)
            found[other] = count, "; ".join(parts) or "not described"
        return found


class Results:
    """Appends to a file of results; several processes may append to the same one, each line is one write.

    Raises:
        UsageError: the file exists and is none of these, or cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.done = _read(path)
        self._known = set(self.done.environments)
        try:
            self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        except OSError as problem:
            raise UsageError(f"cannot write {path}: {problem.strerror}", hint="name another file with -o") from problem
        with self._alone():
            self._cut()

    def close(self) -> None:
        """No more lines."""
        os.close(self._file)

    def environment(self, environment: Mapping[str, Any]) -> str:
        """Its id; a line for it where the file has none yet."""
        name = environment_id(environment)
        if name not in self._known:
            self.write({"record": "environment", "id": name, "environment": dict(environment)})
            self._known.add(name)
        return name

    def write(self, record: Mapping[str, Any]) -> None:
        """One line, on the disk when this returns; where that fails, nothing of it is in the file.

        Raises:
            RunError: the disk is full, or the like.
        """
        text = json.dumps({"schema": SCHEMA, **record}, separators=(",", ":"), allow_nan=False)
        rest = text.encode() + b"\n"
        with self._alone():
            self._cut()
            end = os.fstat(self._file).st_size
            try:
                while rest:
                    rest = rest[os.write(self._file, rest) :]
                os.fsync(self._file)
            except OSError as problem:
                raise RunError(
                    f"cannot write {self._path}: {problem.strerror}",
                    hint="what it holds is whole; make room and go on with --resume",
                ) from problem
            finally:
                if rest:
                    os.ftruncate(self._file, end)

    def add(self, part: Path) -> None:
        """Result lines of another file of results that this one lacks, with their environments' lines before them."""
        known = {_text(record) for record in _records(self._path) if record["record"] == "result"}
        for record in _records(part):
            if record["record"] == "environment":
                self.environment(record["environment"])
            elif record["record"] == "result" and (text := _text(record)) not in known:
                known.add(text)
                self.write(record)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Nobody else writes a line meanwhile, or takes one that is being written for one that was cut off."""
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def _cut(self) -> None:
        """Drops the beginning of a line that was never finished: the process that wrote it was killed."""
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            whole = self._path.read_bytes().rfind(b"\n") + 1
            os.ftruncate(self._file, whole)


def check_results(path: Path) -> None:
    """Refuses, before any work, a file that results cannot be added to.

    Raises:
        UsageError: it is something else, its folder is not there, or no file can be made in it.
    """
    _read(path)
    check_output(path, force=True)


def collected(status: JobStatus) -> None:
    """Adds what the tasks of a cluster's job have left in their files to the benchmark's own, each line once; where
    all tasks ended well, their files are gone then.

    Raises:
        UsageError: one of the files holds something else.
    """
    data = status.job.data or {}
    parts = [part for part in map(Path, data["parts"]) if part.exists()]
    if not parts:
        return
    results = Results(Path(data["output"]))
    try:
        for part in parts:
            results.add(part)
    finally:
        results.close()
    if status.good:  # else tasks that are queued again go on with theirs
        for part in parts:
            part.unlink(missing_ok=True)


def _read(path: Path) -> Done:
    if not path.exists():
        return Done({}, {}, 0)
    if not path.is_file():
        raise UsageError(f"{path} is not a regular file", hint="name another with -o")
    environments: dict[str, Mapping[str, Any]] = {}
    ended: dict[tuple[str, str], dict[int, str]] = {}
    results = 0
    for record in _records(path):
        if record["record"] == "environment":
            environments[record["id"]] = record["environment"]
        elif record["record"] == "result":
            ended.setdefault((record["case"], record["environment"]), {})[record["repeat"]] = record["status"]
            results += 1
    return Done(environments, ended, results)


def _records(path: Path) -> list[dict[str, Any]]:
    """Its whole lines; the beginning of one that was cut off at the end is left out."""
    try:
        data = path.read_bytes()
    except OSError as problem:
        raise UsageError(f"cannot read {path}: {problem.strerror}", hint="name another with -o") from problem
    *lines, begun = data.split(b"\n")
    if begun and not lines:
        raise UsageError(f"{path} is not a file of benchmark results", hint="name another with -o")
    return [_record(line, f"{path} line {number}") for number, line in enumerate(lines, start=1)]


def _text(record: Mapping[str, Any]) -> str:
    """Equal for the same record."""
    return json.dumps(record, sort_keys=True)


# What a line must hold for it to be told which case it is of.
_KEYS: Mapping[str, Mapping[str, type]] = {
    "environment": {"id": str, "environment": dict},
    "result": {"case": str, "environment": str, "repeat": int, "status": str},
}


def _record(line: bytes, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
        kind, schema = record["record"], record["schema"]
        keys = _KEYS.get(kind, {})
        whole = isinstance(schema, int) and all(isinstance(record[key], made) for key, made in keys.items())
    except (ValueError, TypeError, KeyError, RecursionError) as problem:
        raise _other(where) from problem
    if not whole:
        raise _other(where)
    if schema > SCHEMA:
        raise UsageError(f"{where} is of schema {schema}; this molprof writes {SCHEMA}", "-o with a new file")
    return dict(record)


def _other(where: str) -> UsageError:
    return UsageError(f"{where} is not a benchmark result", hint="-o with a new file, or one of molprof bench")
