"""Slurm through its own commands, each with a time limit."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from molprof.common.errors import MolprofError
from molprof.common.process import output_of

# Slurm's own commands give up on a controller that hangs after ten seconds and more.
TIME_LIMIT_S = 20.0
_COMMANDS = ("sbatch", "srun", "squeue", "scontrol", "scancel")
_LOGIN = "run it on the cluster's login node"
LIVE = frozenset(
    {
        *("PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STOPPED", "REQUEUED", "REQUEUE_HOLD"),
        *("REQUEUE_FED", "RESIZING", "SIGNALING", "SPECIAL_EXIT", "STAGE_OUT"),
    }
)


class SchedulerError(MolprofError):
    """Slurm does not answer, or refuses."""


@dataclass(frozen=True)
class Sighting:
    """A task's state as Slurm reports it."""

    state: str  # in Slurm's words, such as `PENDING`, `TIMEOUT`
    reason: str = "None"  # why it waits or ended; the text `None` if Slurm gives none

    @property
    def live(self) -> bool:
        """True if the task waits or runs."""
        return self.state in LIVE


def available() -> bool:
    """Return True if Slurm's commands are installed."""
    return all(map(shutil.which, _COMMANDS))


def check_reachable() -> None:
    """Raise SchedulerError if there is no Slurm here, or its controller does not answer."""
    if not available():
        raise SchedulerError(f"there is no Slurm here: not all of {', '.join(_COMMANDS)} are installed", _LOGIN)
    _ping()


def sightings(slurm_ids: Collection[str]) -> dict[str, Sighting]:
    """Return the state of jobs and their array tasks as Slurm reports it, by the task's id.

    squeue forgets tasks minutes after their end; sacct knows them longer, if accounting is on. SchedulerError if Slurm
    does not answer.
    """
    if not slurm_ids:
        return {}
    _ping()
    wanted = ",".join(sorted(slurm_ids))
    try:
        text = _ask(["squeue", "--noheader", "--array", "--states=all", f"--jobs={wanted}", "--format=%i|%T|%r"])
    except SchedulerError as error:
        if "Invalid job id" not in str(error):
            raise
        text = ""
    seen = {}
    for line in text.splitlines():
        name, state, reason = (*line.strip().split("|", 2), "", "")[:3]
        if state:
            seen[name] = Sighting(state, reason)
    forgotten = set(slurm_ids) - {name.partition("_")[0] for name in seen}
    if not forgotten or shutil.which("sacct") is None:
        return seen
    accounted = ["sacct", "--allocations", "--noheader", "--parsable2", f"--jobs={','.join(sorted(forgotten))}"]
    try:
        text = _ask([*accounted, "--format=JobID,State"])
    except SchedulerError:
        return seen  # accounting is off or down
    for line in text.splitlines():
        name, _, state = line.partition("|")
        if state:
            seen[name] = Sighting(state.split()[0])  # CANCELLED by 1000
    return seen


def job_fields(slurm_id: str) -> Mapping[str, str] | None:
    """Return the fields of `scontrol show job`; None if Slurm does not answer."""
    try:
        text = _ask(["scontrol", "--oneliner", "show", "job", slurm_id], time_limit_s=5.0)
    except SchedulerError:
        return None
    return dict(word.partition("=")[::2] for word in text.split() if "=" in word)


def cancel(slurm_ids: Sequence[str]) -> None:
    """Cancel Slurm's jobs."""
    _ask(["scancel", *slurm_ids])


def _ping() -> None:
    """Fail at once if no controller is up; Slurm's other commands take ten seconds to fail."""
    _ask(["scontrol", "ping"])


def _ask(command: list[str], time_limit_s: float = TIME_LIMIT_S) -> str:
    try:
        done = output_of(command, time_limit_s)
    except FileNotFoundError as error:
        raise SchedulerError(f"{command[0]} is not found", _LOGIN) from error
    except subprocess.TimeoutExpired as error:
        text = f"Slurm does not answer: {command[0]} took more than {time_limit_s:g} s"
        raise SchedulerError(text, "scontrol ping") from error
    if done.returncode != 0:
        lines = (done.stderr if done.stderr.strip() else done.stdout).splitlines()
        said = next((line.strip() for line in lines if any(map(str.isalnum, line))), "no message")
        said = said.removeprefix(f"{command[0]}: error: ")
        raise SchedulerError(f"{command[0]}: {said}", "scontrol ping shows whether Slurm's controller is up")
    return done.stdout
