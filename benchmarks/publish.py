"""Turns the results folder of benchmarks/gpu.py into what the project shows: traces/, docs/results/ and the pages.

python benchmarks/publish.py FOLDER
python benchmarks/publish.py FOLDER --root COPY --rehearsal      results without a GPU, into a copy of the project

A part that was published before for the same GPU is replaced. Nothing is written when something is wrong.
"""

from __future__ import annotations

import filecmp
import gzip
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import measured
from folder import CONTENTS, REHEARSAL, SWEEPS, Results, read_content, short_gpu_name, unpack
from gpu import EVIDENCE
from gpu_parts import FULL
from msgspec import structs
from records import SCHEMA, Costs, History, read_record, write_record
from shared import ROOT, parser

from molprof import api
from molprof.analysis.trim import Wish, trim
from molprof.common.bench_records import read_results
from molprof.common.errors import MolprofError, TraceError, UsageError
from molprof.common.files import replacing
from molprof.common.manifest import KEY, Manifest, from_json
from molprof.common.values import bytes_text
from molprof.profiler.molecules.kinds import check, complete
from molprof.profiler.molecules.smiles import split_atoms

sys.path.append(str(ROOT / "docs"))  # the scripts that make the other pages
import case_study
from pictures import CHROMIUM, write_pictures

MOST_BYTES = 3_000_000
# What publishing may change, below the root.
FOLDERS = ("traces", "docs")
Say = Callable[[str], None]


def publish(folder: Path, root: Path, rehearsal: bool, say: Say) -> None:
    """Check a results folder and bring it into the project at `root`, whole or not at all.

    Raises UsageError or TraceError, in one line, for the first thing that is wrong.
    """
    if rehearsal and root.resolve() == ROOT:
        raise UsageError("a rehearsal must not change the project", hint="--root: a copy of it")
    if missing := [name for name in FOLDERS if not (root / name).is_dir()]:
        raise UsageError(f"{root} has no folder {missing[0]}", hint="--root: a checkout of the project")
    with tempfile.TemporaryDirectory(prefix="molprof-publish-") as scratch:
        (unpacked := Path(scratch, "unpacked")).mkdir()
        results = unpack(folder, unpacked)
        stage = Path(scratch, "root")
        for name in FOLDERS:
            shutil.copytree(root / name, stage / name)
        _Stage(stage, _prefix(results, rehearsal), results, say).fill()
        _write_pages(stage, root, rehearsal, say)
        changed = _bring(stage, root)
    say(f"{changed} files changed below {root}" if changed else f"nothing changed below {root}")


def _write_pages(stage: Path, root: Path, rehearsal: bool, say: Say) -> None:
    """Everything that is made from traces and results. Pictures first: pages show those that exist."""
    traces = (_files(at, "traces") for at in (stage, root))
    new = {name for name in set.union(*traces) if not _same(stage / name, root / name)}
    if new and CHROMIUM is None:
        say("no pictures were made, because there is no Chromium: python docs/pictures.py makes them where it is")
    elif new:  # a picture of the same trace is never the same to the last pixel
        write_pictures(stage, rehearsal)
    case_study.write_pages(stage, rehearsal)
    measured.main(stage)


def _same(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and filecmp.cmp(one, other, shallow=False)


def _prefix(results: Results, rehearsal: bool) -> str:
    """What begins the names of the GPU's files. Every file must name the same GPU."""
    gpu = results.evidence.environment.gpu
    for name, found in _gpus(results):
        if found != gpu:
            raise TraceError(f"{name} was recorded on {found or 'a CPU'}, and {EVIDENCE} names {gpu or 'a CPU'}")
    if rehearsal:
        return REHEARSAL
    if results.evidence.size != FULL:
        raise TraceError(f"the folder holds results of size {results.evidence.size!r}", hint="--rehearsal shows them")
    if (short := short_gpu_name(gpu)) is None:
        what = "on a CPU" if gpu is None else f"on {gpu!r}, which is no GPU's name"
        raise TraceError(f"the folder was recorded {what}", hint="--rehearsal shows it in a copy of the project")
    return short


def _gpus(results: Results) -> Iterator[tuple[str, str | None]]:
    """The GPU that each file names."""
    for name, path in results.traces().items():
        yield name, _read_manifest(path)[0].environment.gpu
    for name, path in results.records().items():
        if name in SWEEPS:
            yield from ((name, where.get("gpu")) for where in read_results(path).environments.values())
        elif (where := getattr(read_content(path), "environment", None)) is not None:
            yield name, where.gpu


def _read_manifest(path: Path) -> tuple[Manifest, str, int, int]:
    """A capture's manifest; the text of its trace, and where in it the manifest stands."""
    try:
        text = gzip.decompress(path.read_bytes()).decode()
        start = text.rindex(f'"{KEY}": {{') + len(KEY) + 4
        raw, end = json.JSONDecoder().raw_decode(text, start)
    except (OSError, EOFError, ValueError) as problem:
        raise TraceError(f"{path.name} is no whole capture: {problem}", hint="copy the folder again") from problem
    try:
        return from_json(raw), text, start, end
    except TraceError as problem:
        raise TraceError(f"{path.name}: {problem}", hint=problem.hint) from problem


@dataclass(frozen=True)
class _Stage:
    """A copy of the project's pages and results, to be filled with a folder's."""

    root: Path
    prefix: str
    results: Results
    say: Say

    def fill(self) -> None:
        target = self.root / "docs" / "results" / self.prefix
        target.mkdir(parents=True, exist_ok=True)
        self._remove(target)
        for name, path in self.results.traces().items():
            self._trace(name, path)
        for name, path in self.results.records().items():
            content = read_content(path)
            if isinstance(content, Costs):
                write_record(target / name, _judged(content))
            else:
                shutil.copyfile(path, target / name)
        write_record(target / EVIDENCE, self._history(target / EVIDENCE))

    def _remove(self, target: Path) -> None:
        """What the parts of the folder left when they were published before."""
        for name in (name for part in self.results.evidence.parts for name in CONTENTS[part]):
            for old in (target / name, self._place(name)):
                if old.exists() and name not in self.results.files:
                    self.say(f"removed {old.relative_to(self.root)}: the folder has none")
                old.unlink(missing_ok=True)

    def _place(self, name: str) -> Path:
        return self.root / "traces" / f"{self.prefix}-{name}"

    def _trace(self, name: str, path: Path) -> None:
        """Complete a trace, check it, and trim it to its size."""
        manifest, text, start, end = _read_manifest(path)
        if any(run.unchecked for run in manifest.molecules):
            whole = structs.replace(
                manifest, molecules=[complete(run, manifest.settings.text_format) for run in manifest.molecules]
            )
            data = (text[:start] + json.dumps(whole.to_json(), separators=(",", ":")) + text[end:]).encode()
            path.write_bytes(gzip.compress(data, 6, mtime=0))
        _check(path)
        target = self._place(name)
        shutil.copyfile(path, target)
        first, last = manifest.window.first_step, manifest.window.last_step
        while target.stat().st_size > MOST_BYTES and last > first:
            # The events of a step are most of the file; a little less than in proportion, so that few tries are made.
            kept = int((last - first + 1) * 0.95 * MOST_BYTES / target.stat().st_size)
            last = first + max(1, kept) - 1
            trim(path, target, Wish((first, last), manifest.window.batch))
            self.say(f"trimmed {name} to steps {first} to {last}, {bytes_text(target.stat().st_size)}")
        if (size := target.stat().st_size) > MOST_BYTES:
            raise TraceError(f"{name} has {bytes_text(size)} with one step; at most {bytes_text(MOST_BYTES)} are kept")

    def _history(self, path: Path) -> History:
        """What ran before without the parts that ran again, and what ran now."""
        new = self.results.evidence
        before = read_record(path, History).runs if path.exists() else []
        rest = [replace(run, parts={k: v for k, v in run.parts.items() if k not in new.parts}) for run in before]
        return History(SCHEMA, [*(run for run in rest if run.parts), new])


def _judged(costs: Costs) -> Costs:
    """Answers with their validity, where the machine could not check it."""

    def judged(cost: Any) -> Any:
        answers = [
            replace(answer, valid=check(answer.text, split_atoms(answer.smiles)) is None)
            if answer.valid is None
            else answer
            for answer in cost.answers
        ]
        return replace(cost, answers=answers)

    return replace(costs, models={name: [judged(cost) for cost in known] for name, known in costs.models.items()})


def _check(path: Path) -> None:
    """Raises TraceError for a trace whose figures cannot be trusted."""
    report = api.report(path, cached=True)
    if report.run is None or report.trace.lost_events:
        raise TraceError(f"{path.name} is no whole capture")
    if broken := [item.text for item in report.checks if not item.holds]:
        raise TraceError(f"{path.name}: the check {broken[0]!r} does not hold")


def _files(root: Path, folder: str) -> set[Path]:
    return {path.relative_to(root) for path in (root / folder).rglob("*") if path.is_file()}


def _bring(stage: Path, root: Path) -> int:
    """Make the folders of `root` what those of `stage` are; the number of files that changed."""
    changed = 0
    for folder in FOLDERS:
        made, there = (_files(at, folder) for at in (stage, root))
        for name in sorted(made):
            target = root / name
            if _same(stage / name, target):
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            with replacing(target) as part:
                shutil.copyfile(stage / name, part)
            changed += 1
        for name in there - made:
            (root / name).unlink()
            changed += 1
    return changed


def main() -> None:
    options = parser(__doc__)
    options.add_argument("folder", type=Path)
    options.add_argument("--root", type=Path, default=ROOT, help="the checkout to change  [default: this one]")
    options.add_argument("--rehearsal", action="store_true", help="accept results of a CPU or of tiny sizes")
    asked = options.parse_args()
    try:
        publish(asked.folder, asked.root, asked.rehearsal, print)
    except MolprofError as problem:
        hint = f"\n  {problem.hint}" if problem.hint else ""
        print(f"error: {problem}{hint}", file=sys.stderr)
        sys.exit(problem.exit_code)


if __name__ == "__main__":
    main()
