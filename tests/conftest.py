"""Fixtures that several test files share: an isolated cache, and the command line, here or in other environments."""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from importlib.util import cache_from_source, find_spec
from pathlib import Path
from typing import Any

import fake_shell as shell
import pytest
from alone import alone
from forks import Copies

# Each worker has a core: with more threads torch waits for the other workers' most of the time. Nor has a copy of this
# process the threads that torch had. Before torch loads.
os.environ.setdefault("OMP_NUM_THREADS", "1")
if "PYTEST_XDIST_WORKER" not in os.environ:
    # Of the workers that begin later: large pages, which their models' matrices and the logits are read faster from.
    os.environ.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")

# Neither molprof nor a library of it may look for a model in the network.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background job ignores Ctrl-C, and so would every process that the tests start and interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)

from goldens import called
from tokenizers import Tokenizer

from molprof.analysis.trace_processor import TraceProcessor, open_engine
from molprof.common import manifest
from molprof.common.memory import processors

# What makes the presets and the generated pages is in the repository, not in the package.
ROOT = Path(__file__).parent.parent
sys.path += [str(ROOT), str(ROOT / "docs"), str(ROOT / "benchmarks")]


def read_once(read: Callable[[str], Tokenizer]) -> Callable[[str], Tokenizer]:
    """Vocabularies of 128,000 tokens and more are read once, which takes half a second, as nobody changes one."""
    kept = functools.lru_cache(maxsize=4)(lambda path, changed_ns: read(path))

    def get(path: str) -> Tokenizer:
        file = os.stat(path)
        if file.st_size < 10**6:
            return read(path)
        found: Tokenizer = kept(path, file.st_mtime_ns)
        found.no_padding()  # which each call of a transformers tokenizer chooses
        found.no_truncation()
        return found

    return get


Tokenizer.from_file = staticmethod(read_once(Tokenizer.from_file))
Cli = Callable[..., "subprocess.CompletedProcess[str]"]
TIMEOUT_S = 300
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
    """What waits more than it computes comes first, so that no worker is alone with it at the end; then what runs
    models, whose tokenizers and processors are then made by one worker.
    """
    makes = {path: runs_models(item) for path, item in {item.path: item for item in items}.items()}
    items.sort(key=lambda item: (item.path.stem not in WAITING, not makes[item.path]))


def runs_models(item: pytest.Item) -> bool:
    names = vars(item.getparent(pytest.Module).obj).values()  # type: ignore[union-attr]
    return any(
        getattr(one, "__module__", getattr(one, "__name__", "")) in ("tiny", "constrained", "captures") for one in names
    )


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


@pytest.fixture(scope="module", autouse=True)
def settled() -> Iterator[None]:
    """What a file's tests leave is not looked through again: `record` would, for a tokenizer, and each copy."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is in doubt because the tests keep the machine busy."""
    for name in ("BUSY_CORES", "_STEAL_RATIO", "_THROTTLED_RATIO"):
        monkeypatch.setattr(manifest, name, float("inf"))


@pytest.fixture(autouse=True)
def copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """What molprof starts of itself as another process need not import torch again."""
    monkeypatch.setattr(subprocess, "Popen", Copies)


@pytest.fixture
def anew(copies: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What molprof starts of itself begins as elsewhere: with nothing imported, in little memory."""
    monkeypatch.setattr(subprocess, "Popen", Copies.__base__)


@pytest.fixture
def engine() -> Iterator[TraceProcessor]:
    """An engine that holds no trace yet."""
    with open_engine() as engine:
        yield engine


@pytest.fixture
def fake_shell(tmp_path: Path) -> str:
    """Path of a stand-in for trace_processor_shell."""
    return shell.write(tmp_path / "trace_processor_shell")


@pytest.fixture
def molprof(tmp_path: Path) -> Cli:
    """Runs `molprof ARGUMENTS` in an empty folder: in this process, or with options in one of its own."""

    def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        if not options:
            return subprocess.CompletedProcess(arguments, *called(arguments, tmp_path))
        line = [sys.executable, "-m", "molprof", *arguments]
        return subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S, **options)

    return run


_LINES = """
import json, pathlib, sys
from goldens import called
lines, folder = json.loads(sys.argv[1]), pathlib.Path.cwd()
print("\\n" + json.dumps([called(line, folder) for line in lines]))
"""


def lines_in(
    folder: Path, environment: Mapping[str, str], *lines: Sequence[str], imports: str = "sys"
) -> list[tuple[int, str, str]]:
    """Exit code, stdout and stderr of command lines, one after the other in one process of this environment."""
    line = [sys.executable, "-c", f"import {imports}\n{_LINES}", json.dumps(lines)]
    done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    found: list[tuple[int, str, str]] = json.loads(done.stdout.splitlines()[-1])
    return found


def with_path(*folders: Path | str, **more: str) -> dict[str, str]:
    """The environment of a process that finds modules in these folders first, `sitecustomize` among them."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*map(str, folders), os.environ.get("PYTHONPATH", "")]), **more}
