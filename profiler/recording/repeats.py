"""`molprof run --repeats`: a program run again and again, with its logits processors and without them.

Each run is a process of its own. The first of each kind is recorded; the others are timed, one of each kind in a round,
in a random order. What was timed stands in the traces, whose runs are paired, when all is done or is interrupted.
"""

from __future__ import annotations

import contextlib
import random
import secrets
import signal
import tempfile
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from molprof.common.errors import RunError
from molprof.common.manifest import KEY, Machine, Manifest, ProgramTotals, Session, from_json
from molprof.common.paired import PairedRuns
from molprof.common.process import run_line, signal_group, started
from molprof.common.values import counted
from molprof.profiler.recording.script import command_line
from molprof.profiler.recording.timed import TimedRun, unprofiled_ns
from molprof.profiler.recording.tracefile import OutputFile, beside, read_trace, write_trace

WITH, WITHOUT = "with its processors", "without its processors"
# For the end of a program that is interrupted while it is recorded.
_GRACE_S = 60.0


def without_path(output: Path) -> Path:
    """Return the path of the recording of the program without its processors."""
    return beside(output, "without")


@dataclass
class Repeats:
    """Repeated runs of a program.

    Args:
        asked, arguments: of `command_line`.
        output, other: where the recordings with and without processors go.
        report: called with a line for each run that has ended.
        begin: called with what runs next.
    """

    settings: dict[str, Any]
    arguments: Sequence[str]
    output: OutputFile
    other: OutputFile
    report: Callable[[str], None]
    begin: Callable[[str], None]
    failed: list[str] = field(default_factory=list)  # one line each
    switched_off: list[str] = field(default_factory=list)  # in runs without processors
    rounds: int = 0  # that are paired

    def run(self, rounds: int) -> int:
        """Run the program: twice recorded, and twice in each round. Returns its exit code.

        An interrupt ends it, and what was timed by then is kept. Raises RunError where nothing was recorded.
        """
        code = self._recorded()
        if code != 0 or not self.output.path.exists():
            self.report("the program is not run again: " + ("it failed" if code else "nothing was recorded"))
            return code
        if (manifest := _manifest(self.output.path)) is None:
            self.report("the program is not run again: it generated nothing")
            return 0
        calls = len(manifest.steps_per_batch)
        timed: dict[str, dict[int, TimedRun]] = {WITH: {}, WITHOUT: {}}
        session, turns = Session(uuid.uuid4().hex, secrets.randbits(32)), dict[tuple[str, int], int]()
        with tempfile.TemporaryDirectory(prefix="molprof-") as folder:
            try:
                sides = [WITH, WITHOUT] if self._recorded_without(Path(folder), calls) else [WITH]
                order = random.Random(session.seed)
                for number in range(rounds):
                    turn = order.sample(sides, len(sides))
                    for index, side in enumerate(turn):
                        label = f"run {side}, {number + 1} of {rounds}"
                        if (timed_run := self._timed(Path(folder), side, label, calls)) is not None:
                            timed[side][number], turns[side, number] = timed_run, index
            except KeyboardInterrupt:
                self.report(f"interrupted; {counted(sum(map(len, timed.values())), 'timed run')} are kept")
                raise
            finally:
                self._keep(session, timed, turns)
        return 0

    def _recorded(self) -> int:
        """Return the recorded run, whose streams are the program's."""
        with started(command_line(self.settings, self.arguments), _GRACE_S) as process:
            try:
                return process.wait()
            except KeyboardInterrupt:  # a group of its own has not heard of it
                signal_group(process, signal.SIGINT)
                with contextlib.suppress(KeyboardInterrupt):
                    process.wait(_GRACE_S)
                raise

    def _recorded_without(self, folder: Path, calls: int) -> bool:
        """Make the recorded run without processors; return True if something was off, and it made all calls."""
        settings = {**self.settings, "output": str(self.other.path.absolute()), "without": True, "chosen": False}
        self._log(folder, settings, f"recorded run {WITHOUT}")
        if not self.other.path.exists():
            self.report(f"nothing was recorded of the program {WITHOUT}: it is run with them alone")
            return False
        manifest = _manifest(self.other.path)
        off = (
            manifest.program.switched_off
            if manifest is not None and isinstance(manifest.program, ProgramTotals)
            else None
        )
        if not isinstance(off, list) or not off:
            self.other.path.unlink()
            self.report("the program gives generate no logits processors: it is run as it is alone")
            return False
        self.switched_off = off
        self.report(f"switched off: {', '.join(self.switched_off)}")
        assert manifest is not None
        if (count := len(manifest.steps_per_batch)) == calls:
            return True
        self._fail(f"{WITHOUT} the program made {count} of {counted(calls, 'call')} of generate: it is not timed so")
        return False

    def _timed(self, folder: Path, side: str, label: str, calls: int) -> TimedRun | None:
        """Run the program with timestamps alone, and return its times.

        None where it failed before it had made all calls of the recorded run.
        """
        path = folder / "timed.json"
        path.unlink(missing_ok=True)
        ended = self._log(folder, {**self.settings, "timed": str(path), "without": side == WITHOUT}, label)
        if not path.exists():
            if ended:
                self._fail(f"{label}: nothing was generated")
            return None
        timed = msgspec.json.decode(path.read_bytes(), type=TimedRun)
        if len(timed.steps) != calls:
            self._fail(f"{label} is not counted: it made {len(timed.steps)} of {counted(calls, 'call')} of generate")
            return None
        wall = timed.repeat.wall_ns / 1e9
        self.report(f"{label}: {wall:.3g} s, {counted(timed.tokens, 'token')}")
        return timed

    def _log(self, folder: Path, settings: dict[str, Any], label: str) -> bool:
        """Run the program with separate output, and return True if it succeeded."""
        self.begin(label)
        with (folder / "output.txt").open("wb") as log:
            ending = run_line(command_line({**settings, "quiet": True}, self.arguments), Path.cwd(), log)
        if ending.state != "ok":
            self._fail(f"{label} failed: {ending.message}")
        return ending.state == "ok"

    def _fail(self, line: str) -> None:
        self.failed.append(line)
        self.report(line)

    def _keep(self, session: Session, timed: dict[str, dict[int, TimedRun]], turns: dict[tuple[str, int], int]) -> None:
        """Write the times into the traces."""
        common = sorted(timed[WITH].keys() & timed[WITHOUT].keys())
        self.rounds = len(common)
        paired = None
        if self.switched_off or self.failed:
            here, there = ([timed[side][number] for number in common] for side in (WITH, WITHOUT))
            paired = PairedRuns(
                other=self.other.path.name,
                switched_off=self.switched_off,
                wall_ns=[item.repeat.wall_ns for item in here],
                tokens=[item.tokens for item in here],
                other_wall_ns=[item.repeat.wall_ns for item in there],
                other_tokens=[item.tokens for item in there],
                failed=self.failed,
            )
        for side, output in ((WITH, self.output), (WITHOUT, self.other)):
            if runs := timed[side]:
                other = WITHOUT if side == WITH else WITH
                side_session = replace(session, run=side, others=[other], rounds=list(runs))
                side_session = replace(side_session, places=[turns[side, number] for number in runs])
                _add(output, list(runs.values()), side_session if common else None, paired if side == WITH else None)


def _manifest(path: Path) -> Manifest | None:
    raw = read_trace(path).keys.get(KEY)
    return None if raw is None else from_json(msgspec.json.decode(raw))


def _add(output: OutputFile, runs: Sequence[TimedRun], session: Session | None, paired: PairedRuns | None) -> None:
    """Put timed runs into the manifest of a trace, in place of the times of the recorded run."""
    recorded = read_trace(output.path)
    if KEY not in recorded.keys:
        raise RunError(f"{output.path} has no manifest to keep times in")
    manifest = from_json(msgspec.json.decode(recorded.keys[KEY]))
    repeats, window = [run.repeat for run in runs], manifest.window
    steps = ((window.batch, step) for step in range(window.first_step, window.last_step + 1))
    timings = replace(manifest.timings, repeats=repeats, unprofiled_steps_ns=unprofiled_ns(repeats, steps))
    problems = list(manifest.problems)
    if len({(run.tokens, *run.steps) for run in runs}) > 1:
        low, high = min(run.tokens for run in runs), max(run.tokens for run in runs)
        problems.append(
            f"the runs did not all write the same number of tokens ({low:,} to {high:,}): their times measure "
            "different work"
        )
    program = manifest.program
    if isinstance(program, ProgramTotals):
        program = replace(program, estimated_steps=0, paired=UNSET if paired is None else paired)
    spans = [span for run in runs for span in run.spans]
    machine = None if manifest.machine is None else Machine(manifest.machine.cores, None, spans)
    changed = replace(manifest, timings=timings, session=session, machine=machine, problems=problems, program=program)
    write_trace(recorded, OutputFile(output.path, force=True), (), {KEY: changed.to_json()})
