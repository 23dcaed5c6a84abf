"""A results folder that came from another machine: checked, nothing in it trusted or run, and unpacked."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from gpu import EVIDENCE, LOG
from gpu_parts import FULL, parts
from records import Costs, Doctor, Evidence, Overhead, Part, Ways, read_record

from molprof.common.bench_records import read_results
from molprof.common.errors import TraceError, UsageError

# Traces end in this; all other contents are records.
TRACE = ".json.gz"
# What each part may leave, in PART.tar.
CONTENTS = {name: tuple(step.file for step in part.steps) for name, part in parts(FULL).items()}
SWEEPS = tuple(name for name in CONTENTS["attention"] if name.endswith(".jsonl"))
MOST_TRACE_BYTES, MOST_RECORD_BYTES = 50_000_000, 20_000_000
# In place of a GPU's short name: results that are no evidence.
REHEARSAL = "rehearsal"
_GPU_WORD = re.compile(r"(?:[A-Z]{1,2})?\d{1,4}[A-Z]?")


@dataclass(frozen=True)
class Results:
    """A checked folder: what ran, and the files of each part by name, unpacked."""

    evidence: Evidence
    files: dict[str, Path]

    def traces(self) -> dict[str, Path]:
        return {name: path for name, path in self.files.items() if name.endswith(TRACE)}

    def records(self) -> dict[str, Path]:
        return {name: path for name, path in self.files.items() if not name.endswith(TRACE)}


def unpack(folder: Path, scratch: Path) -> Results:
    """Check the folder and write what its archives hold into `scratch`.

    Raises UsageError or TraceError, in one line, for the first thing that is not as it should be.
    """
    if not folder.is_dir():
        raise UsageError(f"no folder {folder}", hint="name the folder that benchmarks/gpu.py filled")
    if not (folder / EVIDENCE).is_file():
        raise UsageError(f"{folder} has no {EVIDENCE}", hint="name the folder that benchmarks/gpu.py filled")
    known = {EVIDENCE, LOG, *(f"{part}.tar" for part in CONTENTS)}
    if unknown := sorted(path.name for path in folder.iterdir() if path.name not in known or not path.is_file()):
        raise TraceError(f"{folder} holds {unknown[0]}, which is no result", hint=f"it may hold {', '.join(known)}")
    evidence = read_record(folder / EVIDENCE, Evidence)
    if unknown := sorted(set(evidence.parts) - set(CONTENTS)):
        raise TraceError(f"{EVIDENCE} tells of a part {unknown[0]!r}", hint=f"parts: {', '.join(CONTENTS)}")
    files: dict[str, Path] = {}
    for part in CONTENTS:
        archive = folder / f"{part}.tar"
        if archive.exists() and part not in evidence.parts:
            raise TraceError(f"{EVIDENCE} does not tell of {archive.name}")
        if archive.exists():
            files |= _extracted(archive, CONTENTS[part], scratch)
    for name, part in evidence.parts.items():
        _check_steps(name, part, files)
    unfinished = {step.file for part in evidence.parts.values() for step in part.steps if step.state != "done"}
    for name, path in list(files.items()):
        try:
            _ = name.endswith(TRACE) or read_content(path)
        except TraceError:
            if name not in unfinished:
                raise
            del files[name]  # a benchmark that ended before its first result
    return Results(evidence, files)


def read_content(path: Path) -> object:
    """What a record holds, by its name. Raises TraceError if it holds something else."""
    if path.name in SWEEPS:
        return read_results(path)
    kinds = {"processors": Costs, "decoding": Ways, "overhead": Overhead, "doctor": Doctor}
    return read_record(path, kinds[path.stem.partition("-")[0]])


def _extracted(archive: Path, accepted: tuple[str, ...], scratch: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    try:
        with archive.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as members:
            for member in members:
                where = f"{archive.name}: {member.name!r}"
                if not member.isreg():
                    raise TraceError(f"{where} is not a plain file")
                if member.name not in accepted:
                    raise TraceError(f"{where} is no result of this part", hint=f"it may hold {', '.join(accepted)}")
                if member.name in found:
                    raise TraceError(f"{where} is there twice")
                most = MOST_TRACE_BYTES if member.name.endswith(TRACE) else MOST_RECORD_BYTES
                if member.size > most:
                    raise TraceError(f"{where} has {member.size:,} bytes; at most {most:,} are read")
                source = members.extractfile(member)
                assert source is not None  # a plain file
                found[member.name] = scratch / member.name
                found[member.name].write_bytes(_whole(source, member.size, where))
    except (tarfile.TarError, OSError, EOFError) as problem:
        raise TraceError(f"{archive.name} cannot be read: {problem}", hint="copy the folder again") from problem
    return found


def _whole(source: IO[bytes], size: int, where: str) -> bytes:
    data = source.read(size)
    if len(data) != size:
        raise TraceError(f"{where} is cut off", hint="copy the folder again")
    return data


def _check_steps(name: str, part: Part, files: dict[str, Path]) -> None:
    """A step that is done left its file."""
    for step in part.steps:
        if step.state == "done" and step.file in CONTENTS[name] and step.file not in files:
            raise TraceError(f"{EVIDENCE}: {step.name!r} is done, but {name}.tar has no {step.file}")


def short_gpu_name(gpu: str | None) -> str | None:
    """`h100` of `NVIDIA H100 80GB HBM3`; None without such a word."""
    words: Iterator[str] = (word for word in re.split(r"[\s-]+", gpu or "") if not word.endswith("GB"))
    return next((word.lower() for word in words if _GPU_WORD.fullmatch(word)), None)
