"""A results file of JSON lines; each line is written whole and flushed when its case has ended."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from molprof.common.bench_records import SCHEMA, Results, digest, read_results
from molprof.common.errors import RunError, UsageError
from molprof.common.files import check_output
from molprof.common.process import OK


class ResultsFile:
    """A file that results are added to; several processes may add to the same one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.before = _before(path)  # what the file holds now
        self._ended: dict[tuple[str, str], dict[int, str]] = {}  # (case, environment) -> repeat -> status
        for result in self.before.results:
            self._ended.setdefault((result.case, result.environment), {})[result.repeat] = result.status
        self._known = set(self.before.environments)
        try:
            self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        except OSError as problem:
            raise UsageError(f"cannot write {path}: {problem.strerror}", hint="name another file with -o") from problem
        with self._locked():
            self._cut()

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def has(self, case: str, environment: str, repeat: int, again: bool) -> bool:
        """Return True if that repeat was ok before, or, without `again`, another repeat of the case failed."""
        ended = self._ended.get((case, environment), {})
        if ended.get(repeat) == OK:
            return True
        return not again and any(status != OK for status in ended.values())

    def has_figures(self, cases: Collection[str]) -> bool:
        """Return True if the file had figures of any of the cases before."""
        return any(case in cases and OK in repeats.values() for (case, _), repeats in self._ended.items())

    def elsewhere(self, cases: Collection[str], environment: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
        """Yield, for each other environment with results of the cases, their number and its differences from this."""
        here, counts = digest(environment), Counter[str]()
        for (case, other), repeats in self._ended.items():
            if case in cases and other != here:
                counts[other] += len(repeats)
        for other, count in counts.items():
            described = self.before.environments.get(other, {})
            names = [name for name in environment if name in described and described[name] != environment[name]]
            parts = (f"{name} {described[name]}, here {environment[name]}" for name in names)
            yield count, "; ".join(parts) or "not described"

    def environment(self, environment: Mapping[str, Any]) -> str:
        """Return the id of an environment, after describing it in the file if it is new."""
        name = digest(environment)
        if name not in self._known:
            self.write({"record": "environment", "id": name, "environment": dict(environment)})
            self._known.add(name)
        return name

    def write(self, record: Mapping[str, Any]) -> None:
        """Add one line, which is on the disk when this returns, or not in the file at all (RunError: a full disk)."""
        text = json.dumps({"schema": SCHEMA, **record}, separators=(",", ":"), allow_nan=False)
        rest = text.encode() + b"\n"
        with self._locked():
            self._cut()
            end = os.fstat(self._file).st_size
            try:
                while rest:
                    rest = rest[os.write(self._file, rest) :]
                os.fsync(self._file)
            except OSError as problem:
                raise RunError(
                    f"cannot write {self._path}: {problem.strerror}",
                    hint="its lines are whole; make room and continue with --resume",
                ) from problem
            finally:
                if rest:
                    os.ftruncate(self._file, end)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the file: other processes neither write nor take a line that is being written for a cut one."""
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def _cut(self) -> None:
        """Remove a last line that a killed process did not complete."""
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            os.ftruncate(self._file, self._path.read_bytes().rfind(b"\n") + 1)


def check_results(path: Path) -> None:
    """Refuse, before any work, a file that cannot take results."""
    _before(path)
    check_output(path, force=True)


def _before(path: Path) -> Results:
    if not path.exists():
        return Results()
    if not path.is_file():
        raise UsageError(f"{path} is not a regular file", hint="name another with -o")
    return read_results(path, to_add=True)
