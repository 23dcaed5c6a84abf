"""Fixtures that several test files share: an isolated cache, and the command line as a real process."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from importlib.util import cache_from_source, find_spec
from pathlib import Path
from typing import Any

import fake_shell as shell
import pytest
from alone import alone
from fork_server import ANALYSIS, CAPTURE, LIBRARIES, MODELS, ForkServer

if "PYTEST_XDIST_WORKER" in os.environ:
    # Each worker has a core: with more threads torch waits for the other workers' most of the time. Before torch loads.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
else:
    # Of the workers that begin later: large pages, which their models' matrices and the logits are read faster from.
    os.environ.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")

# Neither molprof nor a library of it may look for a model in the network.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background job ignores Ctrl-C, and so would every process that the tests start and interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)

from molprof.analysis.trace_processor import TraceProcessor, open_engine
from molprof.common import manifest
from molprof.common.memory import processors

# What makes the presets and the generated pages is in the repository, not in the package.
ROOT = Path(__file__).parent.parent
sys.path += [str(ROOT), str(ROOT / "docs"), str(ROOT / "benchmarks")]

Cli = Callable[..., "subprocess.CompletedProcess[str]"]
TIMEOUT_S = 300
# Commands that load a model in their own process.
CAPTURING = (("capture",), ("demo",))
# Files whose tests wait most of their time: for Slurm, a browser, an index, or a limit of time.
WAITING = ("test_slurm", "test_browser", "test_wheels", "test_process")


# Tests and what they import stay to the end: no collection of garbage need look at them again.
gc.disable()


def lacks_bytecode() -> bool:
    """Whether the imports of this worker, and so of the others, compile what they import: two thirds of their time."""
    spec = find_spec("transformers")
    places = spec.submodule_search_locations if spec else None
    return bool(places) and not Path(cache_from_source(f"{places[0]}/generation/__init__.py")).exists()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """In a new environment the first worker compiles for all."""
    if "PYTEST_XDIST_WORKER" not in os.environ or sys.dont_write_bytecode or not lacks_bytecode():
        return (yield)
    with contextlib.ExitStack() as first:
        first.enter_context(alone(Path(__file__).parent))
        if not lacks_bytecode():
            first.close()
        return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What waits more than it computes comes first, so that no worker is alone with it at the end."""
    items.sort(key=lambda item: item.path.stem not in WAITING)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)  # it looks for garbage in a tenth of the time
    gc.enable()


def pytest_xdist_auto_num_workers() -> int:
    """`-n auto`: none more, as each imports all tests; what runs beside them takes the time that some of them wait."""
    return processors()


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """No test reads or writes the user's cache; all workers share one, for the compiled engine and the tokenizers."""
    base = tmp_path_factory.getbasetemp()
    among = "PYTEST_XDIST_WORKER" in os.environ
    folder = (base.parent if among else base) / "cache"
    folder.mkdir(exist_ok=True)
    os.environ["MOLPROF_CACHE"] = str(folder)
    if among:
        with alone(folder):
            open_engine().close()
    return folder


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is in doubt because the tests keep the machine busy."""
    for name in ("BUSY_CORES", "_STEAL_RATIO", "_THROTTLED_RATIO"):
        monkeypatch.setattr(manifest, name, float("inf"))


@pytest.fixture
def engine() -> Iterator[TraceProcessor]:
    """An engine that holds no trace yet."""
    with open_engine() as engine:
        yield engine


@pytest.fixture
def fake_shell(tmp_path: Path) -> str:
    """Path of a stand-in for trace_processor_shell."""
    return shell.write(tmp_path / "trace_processor_shell")


@pytest.fixture(scope="session")
def fork_servers(own_cache: Path) -> Iterator[Callable[[Sequence[str]], ForkServer]]:
    """The server that forks a command: one that has imported torch for those that capture, else one that has not."""
    started: dict[bool, ForkServer] = {}

    def server(arguments: Sequence[str]) -> ForkServer:
        models = "--help" not in arguments and arguments[:1] in CAPTURING
        if models not in started:
            # All workers have the same cache, so the same servers.
            started[models] = ForkServer(str(own_cache), *((CAPTURE, MODELS) if models else (ANALYSIS, LIBRARIES)))
        return started[models]

    yield server
    for item in started.values():
        item.close()


@pytest.fixture
def molprof(tmp_path: Path, fork_servers: Callable[[Sequence[str]], ForkServer]) -> Cli:
    """Runs `python -m molprof ARGUMENTS` in an empty folder."""

    def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        environment = options.get("env", os.environ)
        server = fork_servers(arguments)
        if options.keys() <= {"env"} and server.serves(environment):
            return server.run(arguments, tmp_path, environment, TIMEOUT_S)
        line = [sys.executable, "-m", "molprof", *arguments]
        return subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S, **options)

    return run
