"""Results of a history as one file each, in a folder or a bucket, written whole and never twice."""

from __future__ import annotations

import dataclasses
import hashlib
import re
import statistics
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from molprof import __version__
from molprof.analysis.bench.masks import engine_masks, step_costs
from molprof.analysis.bench.summary import summed
from molprof.analysis.fleet.row import FleetRow
from molprof.analysis.history import KIND, SCHEMA, HistoryEntry
from molprof.analysis.reader.remote import content, is_remote, listed, remote_text, write_content
from molprof.common.bench_records import read_results
from molprof.common.errors import TraceError, UsageError
from molprof.common.process import output_of
from molprof.common.values import Value, counted

ENDING = ".history.json"
_NAME_LETTERS = 60
_GIT_S = 10


def entry_of(row: FleetRow, digest: str | None, name: str | None, time: str, commit: str | None) -> HistoryEntry:
    """Return the result of a row. Raises TraceError where its trace could not be read."""
    if row.problem is not None or digest is None:
        raise TraceError(row.problem or f"{row.file} cannot be read")
    about = {
        field: getattr(row, field) for field in HistoryEntry.__struct_fields__ if field in FleetRow.__struct_fields__
    }
    about |= {"kind": KIND, "schema": SCHEMA, "name": name or row.label or row.file, "digest": digest}
    return HistoryEntry(**about, time=time, commit=commit)


def entries_of_masks(path: Path, digest: str, name: str | None, time: str, commit: str | None) -> list[HistoryEntry]:
    """Return the results in a file of `molprof bench masks`: one for each engine, schema and number of rows of a step.

    Raises TraceError for another file, and where no engine masked anything.
    """
    kept, entries = read_results(path), []
    environments = [items for used in kept.results if (items := kept.environments.get(used.environment))]
    common = {key: str(value) for items in environments for key, value in items.items() if value is not None}
    for engine in engine_masks([item for item in summed(kept) if item.masks]):
        environment = {**common, "tokenizer": engine.tokenizer, engine.engine: engine.version}
        for schema in () if engine.other else engine.schemas:
            one = dataclasses.replace(engine, schemas=(schema,))
            each = f"{name or path.stem}: {engine.engine}, {schema.name}"
            figures: dict[str, dict[str, Value]] = {}
            if masks := one.masks():
                figures[each] = {"mask_fill_ns": statistics.median(mask.mask_ns for mask in masks)}
            for cost in step_costs([one]):
                of_step: dict[str, Value] = {"processor_ns": cost.total.mean_ns}
                of_step |= {"mask_fill_ns": cost.fill.mean_ns / cost.rows} if cost.fill else {}
                figures[f"{each}, {counted(cost.rows, 'row')} on {cost.device}"] = of_step
            entries += [
                HistoryEntry(
                    KIND, SCHEMA, each_name, time, commit, environment, str(path), digest, __version__, of_each
                )
                for each_name, of_each in figures.items()
            ]
    if not entries:
        raise TraceError(f"{path} holds no masks that were timed", hint="molprof bench masks SCHEMA -o FILE")
    return entries


def entry_path(folder: Path, entry: HistoryEntry) -> Path:
    """Return the path of a result; its name depends on the content alone."""
    words = re.sub(r"[^\w.+-]+", "-", entry.name)[:_NAME_LETTERS]
    both = hashlib.blake2b(f"{entry.digest} {entry.name}".encode(errors="surrogateescape"), digest_size=16)
    return folder / f"{words}-{both.hexdigest()}{ENDING}"


def add(folder: Path, entry: HistoryEntry) -> bool:
    """Write a result unless it exists; return True if it was written."""
    path = entry_path(folder, entry)
    with suppress(OSError, UsageError):  # it is not there
        content(path)
        return False
    write_content(path, msgspec.json.encode(entry))
    return True


def entries(folder: Path) -> Iterator[HistoryEntry]:
    """Yield the results in a folder. Raises TraceError, UsageError."""
    files, where = _files(folder), remote_text(folder)
    if not files:
        raise UsageError(f"{where} holds no results", hint=f"molprof history add TRACE --to {where}")
    for path in files:
        try:
            entry = msgspec.json.decode(content(path), type=HistoryEntry)
        except (OSError, msgspec.MsgspecError) as error:
            raise TraceError(
                f"{remote_text(path)} is no whole result of a history: {error}", hint="delete it"
            ) from error
        if (entry.kind, entry.schema) != (KIND, SCHEMA):
            raise TraceError(f"{remote_text(path)} is a result of schema {entry.schema}; this molprof reads {SCHEMA}")
        yield entry


def _files(folder: Path) -> list[Path]:
    return listed(folder, (ENDING,)) if is_remote(folder) else sorted(folder.glob(f"*{ENDING}"))


def commit_here() -> str | None:
    """Return the commit of the current folder, with -dirty where files differ from it.

    None without one.
    """
    try:
        described = output_of(["git", "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"], _GIT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return described.stdout.strip() or None
