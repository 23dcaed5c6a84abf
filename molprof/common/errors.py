"""The errors that a user may see: each carries its exit code and, where there is one, the next step."""

from __future__ import annotations

import copyreg
from pathlib import Path
from typing import Any

from molprof.common.installed import install_command


class MolprofError(Exception):
    """A failure that the command line prints as one line, and below it a hint what to do about it."""

    exit_code = 3

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint
        if hint is not None:
            self.__notes__ = [hint]  # below the message where Python prints it, from 3.11 on

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions pickle as a call of their class with the message alone, which some classes do not take.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class UsageError(MolprofError):
    """An option, argument or input file that cannot be used as given."""

    exit_code = 2


class UnsupportedError(UsageError):
    """The requested case cannot run on this machine, which is no failure."""


class TraceError(MolprofError):
    """A trace that cannot be read, or whose figures cannot be trusted."""


class EngineError(MolprofError):
    """The trace processor is missing, changed, or failed."""


class QueryError(MolprofError):
    """A SQL query that the trace processor refused."""

    exit_code = 2


class RunError(MolprofError):
    """A capture that could not be made, or whose figures cannot be trusted."""


class TakenError(MolprofError):
    """Another process wrote the output file meanwhile; `kept` is the file that has the result."""

    def __init__(self, message: str, kept: Path) -> None:
        super().__init__(message)
        self.kept = kept


class NotComparableError(MolprofError):
    """Runs whose times are of unlike work."""


class ProcessorError(RunError):
    """A user's logits processor failed, or returned what cannot be scores; without a step, before the first one."""

    def __init__(
        self, message: str, hint: str | None = None, *, step: int | None = None, batch: int | None = None
    ) -> None:
        super().__init__(message, hint)
        self.step, self.batch = step, batch

    def in_batch(self, batch: int) -> ProcessorError:
        """Return the error with the number of its batch."""
        return ProcessorError(f"{self}, batch {batch}", self.hint, step=self.step, batch=batch)


# What a command imports only when it is used: module -> distribution, and the extra that has it. Those that capture
# name `presets`, which is enough for every model.
_EXTRAS = {
    **{name: (name, "analysis") for name in ("isal", "jinja2", "matplotlib", "perfetto", "viztracer", "wasmtime")},
    "backports": ("backports.zstd", "analysis"),
    "google": ("protobuf", "analysis"),
    "torch": ("torch", "presets"),
    "transformers": ("transformers", "presets"),
}


class MissingExtraError(UsageError):
    """The distribution `package`, which the extra `extra` of molprof installs, if one does, is missing."""

    def __init__(self, package: str, extra: str | None, purpose: str) -> None:
        message = f"{purpose} needs the package {package!r}, which is not installed"
        super().__init__(message, install_command(package, extra))


def missing_extra(module: str, purpose: str) -> MissingExtraError | None:
    """Return the error about a module that is not installed; None if no extra has it."""
    name = module.partition(".")[0]
    return MissingExtraError(*_EXTRAS[name], purpose) if name in _EXTRAS else None
