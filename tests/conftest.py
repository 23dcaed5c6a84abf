"""Fixtures that several test files share: an isolated cache, and the command line as a real process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import fake_shell as shell
import pytest

if "PYTEST_XDIST_WORKER" in os.environ:
    # Each worker has a core: with more threads torch waits for the other workers' most of the time. Before torch loads.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background job ignores Ctrl-C, and so would every process that the tests start and interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)

from molprof.analysis.engine import Engine, open_engine
from molprof.common import machine_records

# What makes the presets and the generated pages is in the repository, not in the package.
ROOT = Path(__file__).parent.parent
sys.path += [str(ROOT), str(ROOT / "docs"), str(ROOT / "benchmarks")]

Cli = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """No test reads or writes the user's cache; the compiled engine and the tokenizers are made once per session."""
    folder = tmp_path_factory.mktemp("cache")
    os.environ["MOLPROF_CACHE"] = str(folder)
    return folder


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is in doubt because the tests keep the machine busy."""
    for name in ("BUSY_CORES", "_STEAL_RATIO", "_THROTTLED_RATIO"):
        monkeypatch.setattr(machine_records, name, float("inf"))


@pytest.fixture
def engine() -> Iterator[Engine]:
    """An engine that holds no trace yet."""
    with open_engine() as engine:
        yield engine


@pytest.fixture
def fake_shell(tmp_path: Path) -> str:
    """Path of a stand-in for trace_processor_shell."""
    return shell.write(tmp_path / "trace_processor_shell")


@pytest.fixture
def molprof(tmp_path: Path) -> Cli:
    """Runs `python -m molprof ARGUMENTS` in an empty folder."""

    def run(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "molprof", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            **options,  # type: ignore[call-overload]
        )

    return run
