"""Resources of a Slurm job: a `[slurm.NAME]` table, options that override it, and submitit's names for them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from molprof.common.errors import UsageError
from molprof.common.setting import key_value
from molprof.common.text import shortened
from molprof.common.toml_file import TomlFile, unknown

_TIME = r"([0-9]{1,9}-)?[0-9]{1,9}(:[0-9]{1,9}){0,2}"
_OPTION = re.compile(r"(--)?[A-Za-z][\w-]*")
_EXAMPLE = "partition=gpu --slurm time=2:00:00"
_AT_LEAST_1 = "a whole number of at least 1"


@dataclass(frozen=True)
class SlurmSettings:
    """Resources of one task of a job; None: the cluster's default."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    gpus: str | None = None  # `2`, or with a type `a100:2`
    cpus: int | None = None  # cores of a task
    time: str | None = None  # time limit of a task, as sbatch takes it: minutes, `1:30:00`, `2-12:00:00`
    memory: str | None = None  # as sbatch takes it, such as `64G`
    parallel: int | None = None  # most tasks of the job that run at the same time
    setup: tuple[str, ...] = ()  # shell lines before the task, such as `module load cuda`
    # other options of sbatch by long name; True for an option without a value
    sbatch: Mapping[str, str | int | bool] = field(default_factory=dict)

    def parameters(self) -> dict[str, Any]:
        """Return them as arguments of `submitit.SlurmExecutor.update_parameters`."""
        values = {name: getattr(self, name) for name in ("partition", "account", "qos", "constraint")} | {
            "gpus_per_node": self.gpus,
            "cpus_per_task": self.cpus,
            "mem": self.memory,
            "setup": list(self.setup),
            "array_parallelism": self.parallel,
            # Since Slurm 22.05 srun, which starts the task, does not inherit this from its job.
            "srun_args": self.cpus and [f"--cpus-per-task={self.cpus}"],
        }
        # Without `time`, submitit sets five minutes.
        return {name: value for name, value in values.items() if value} | {"time": self.time}

    def to_json(self) -> dict[str, Any]:
        """Return the resources that are set, by name."""
        return {name: value for name, value in asdict(self).items() if value not in (None, (), {})}


def _matching(pattern: str, expected: str, read: Callable[[str], Any] = str) -> Callable[[object], Any]:
    """Return a parser of a text or number that `read` converts; its ValueError says what is expected."""

    def checked(value: object) -> Any:
        if isinstance(value, bool) or not isinstance(value, str | int) or not re.fullmatch(pattern, str(value)):
            raise ValueError(expected)
        return read(str(value))

    return checked


def _setup(value: object) -> tuple[str, ...]:
    lines = [value] if isinstance(value, str) else value
    if not isinstance(lines, list) or not all(isinstance(line, str) and "\0" not in line for line in lines):
        raise ValueError("shell lines, such as ['module load cuda']")
    return tuple(lines)


def _sbatch(value: object) -> dict[str, str | int | bool]:
    # A character such as a newline would end the option's line in the script.
    if not isinstance(value, dict) or not all(
        isinstance(item, str | int) and str(item).isprintable() and _OPTION.fullmatch(key)
        for key, item in value.items()
    ):
        raise ValueError("options of sbatch by their long names, such as { reservation = 'mine' }")
    return {key.removeprefix("--"): item for key, item in value.items() if item is not False}


# Keys of the file, named as their attributes, and what makes their values. Numbers are ASCII, and short
# enough for sbatch.
_KEYS: dict[str, Callable[[object], Any]] = {
    **dict.fromkeys(
        ("partition", "account", "qos", "constraint"), _matching(r"(?=.*\S)[^\x00-\x1f\x7f]+", "text on one line")
    ),
    "gpus": _matching(
        r"(?:[\w.-]+:)?[0-9]{1,9}",
        "a number of GPUs, or TYPE:NUMBER such as 'a100:2'",
        lambda text: None if text == "0" else text,
    ),
    "cpus": _matching("0*[1-9][0-9]{0,8}", _AT_LEAST_1, int),
    "time": _matching(_TIME, "minutes, or a time such as '1:30:00' or '2-12:00:00'"),
    "memory": _matching("[0-9]{1,9}[KMGT]", "a whole number with K, M, G or T, such as '64G'"),
    "parallel": _matching("0*[1-9][0-9]{0,8}", _AT_LEAST_1, int),
    "setup": _setup,
    "sbatch": _sbatch,
}


def slurm_table(file: TomlFile, name: str) -> SlurmSettings:
    """Return the Slurm settings of a table of the project file. Raises UsageError."""
    where = ["slurm", name]
    settings = SlurmSettings()
    for key, value in file.check_keys(file.content["slurm"][name], where, _KEYS).items():
        try:
            settings = _changed(settings, key, value)
        except ValueError as wrong:
            file.refuse(str(wrong), [*where, key])
    return settings


def overridden(settings: SlurmSettings, options: Sequence[str]) -> SlurmSettings:
    """Return `settings` with the values of `KEY=VALUE` options in their place."""
    accepted = [key for key in _KEYS if key != "sbatch"]
    for option in options:
        key, value = key_value("--slurm", option, _EXAMPLE)
        if key not in accepted:
            raise UsageError(unknown(f"--slurm {key}", key, accepted), hint=f"e.g. --slurm {_EXAMPLE}")
        try:
            settings = _changed(settings, key, value)
        except ValueError as wrong:
            raise UsageError(f"--slurm {wrong}") from wrong
    return settings


def _changed(settings: SlurmSettings, key: str, value: object) -> SlurmSettings:
    try:
        return replace(settings, **{key: _KEYS[key](value)})
    except ValueError as wrong:
        raise ValueError(f"{key} is {shortened(repr(value))}, expected {wrong}") from wrong
