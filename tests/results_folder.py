"""A results folder as benchmarks/gpu.py leaves one, made by hand around given traces."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import bench_data
from gpu_parts import FULL, parts
from msgspec import to_builtins
from records import (
    DECODING,
    PROCESSORS,
    SCHEMA,
    Answer,
    Cost,
    Costs,
    CostSettings,
    Overhead,
    Round,
    StepRatios,
    Way,
    Ways,
    WaySettings,
)

from molprof.common.manifest import Environment
from molprof.profiler.bench.cases import GenerateCase, SdpaCase
from molprof.profiler.molecules.conformers import reference_conformers
from molprof.profiler.molecules.smiles import block, split_atoms

SMILES, POSITIONS = reference_conformers()[0]
VALID = f"[CONFORMER]{split_atoms(SMILES).skeleton([block(place) for place in POSITIONS])}[/CONFORMER]"
JUNK = VALID.replace(">", "abra>", 1)


def environment(gpu: str | None) -> Environment:
    return Environment(
        gpu, 80_000_000_000, "570.1", "12.8", "91002", "2.11", "5.17", None, "0.1", "3.12", "Linux", "A CPU", 16, 8
    )


def cost(name: str, share: float, text: str = VALID, valid: bool | None = True) -> Cost:
    """A processor with `share` of each step of 1 ms."""
    spent = round(1e6 * 20 * share)
    phases = {"prefill": 1_000_000, "forward": 19_000_000 - spent, "processor": spent, "sampling": 0, "bookkeeping": 0}
    rounds = [Round(30_000_000, {**phases, "template": 400_000}, 1, 20, 40)] * 2
    return Cost(name, rounds, 6.0, {"f": 30, "c": 9, "e": 1}, 0, [Answer(SMILES, text, valid)])


def records(gpu: str | None) -> dict[str, bytes]:
    """The parts' records by the name of their file."""
    where = environment(gpu)
    asked = CostSettings("0.6b", 1, 1, 2, "bfloat16")
    costs = [cost("none", 0), cost("truncate", 0.005), cost("grammar", 0.02, JUNK), cost("generic", 0.1, VALID, None)]
    left_out = {"qwen": {"xgrammar": "the package xgrammar is missing"}}
    ways = [
        Way(None, "default", [100, 110], 100, 90, 100, 90, False),
        Way("grammar", "forced runs", [40, 66], 100, 50, 60, 50, True),
    ]
    asked_ways = WaySettings("0.6b", 1, 1, "dynamic", "bfloat16", 2)
    made: dict[str, Any] = {
        "processors-qwen.json": Costs(SCHEMA, PROCESSORS, "2026-11-22", where, asked, {"qwen": costs}, left_out),
        "decoding-qwen.json": Ways(
            SCHEMA, DECODING, "2026-11-22", where, asked_ways, "wall time", 1.0, {"qwen": ways}
        ),
        "overhead-qwen.json": Overhead(SCHEMA, "qwen", where, StepRatios([9e6, 9.2e6], 1.01, 1.4, None), 1.002, 250.0),
    }  # fmt: skip
    return {name: json.dumps(to_builtins(record)).encode() for name, record in made.items()}


def sweeps(folder: Path) -> dict[str, bytes]:
    """Files of `molprof bench` with a case that ended badly."""
    case = GenerateCase("qwen", attention="eager", batch_size=2)
    hung = GenerateCase("qwen", attention="sdpa-cudnn", batch_size=2)
    bad = bench_data.result(hung, 0, "hung", None, message="no result within 60 s")
    paths = [
        bench_data.write(folder / "attention.jsonl", *bench_data.ran(case, [20.0]), bad),
        bench_data.write(folder / "sdpa.jsonl", *bench_data.timed(SdpaCase("auto", 1, 2, 2, 1, 16, 8), 100.0)),
        bench_data.write(folder / "batch.jsonl", *bench_data.ran(case, [20.0])),
    ]
    return {path.name: path.read_bytes() for path in paths}


def write(folder: Path, files: Mapping[str, bytes], gpu: str | None, size: str = FULL) -> Path:
    """The folder with every file in the archive of its part; other steps are left out."""
    folder.mkdir(parents=True)
    told: dict[str, Any] = {}
    for name, part in parts(FULL).items():
        own = {step.file: files[step.file] for step in part.steps if step.file in files}
        steps = [
            {
                "name": step.name, "command": list(step.line), "exit_code": 0 if step.file in own else None,
                "state": "done" if step.file in own else "left out", "seconds": 12.5,
                "file": step.file if step.file in own else None, "why": None if step.file in own else "no | time",
            }
            for step in part.steps
        ]  # fmt: skip
        if own:
            told[name] = {"seconds": 12.5 * len(own), "steps": steps}
            (folder / f"{name}.tar").write_bytes(packed(own))
    evidence = {
        "schema": 1,
        "size": size,
        "environment": to_builtins(environment(gpu)),
        "started": "2026-11-22T12:00:00",
    }
    (folder / "evidence.json").write_text(json.dumps({**evidence, "parts": told}))
    (folder / "log.txt").write_text("what the steps printed\n")
    return folder


def packed(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()
