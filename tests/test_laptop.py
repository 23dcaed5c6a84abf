"""The commands where Linux's own calls and files are missing, as on macOS: they print what they print on Linux.

What a child process lacks is deleted before it imports anything, so that an unguarded use fails here too.
"""

from __future__ import annotations

import os
import re
import runpy
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import ROOT, TIMEOUT_S, Cli
from fork_server import CAPTURE, MODELS, ForkServer
from rank_traces import write_rank

# What Python has on Linux alone, of modules that molprof uses. macOS has fork, but its libraries may crash in one.
MACOS = """
import builtins, ctypes, fcntl, mmap, os, resource, select, signal, sys, time, types

MISSING = {
    os: "memfd_create sched_getaffinity sched_setaffinity sched_getparam sched_setparam sched_getscheduler"
    " sched_setscheduler sched_rr_get_interval posix_fallocate posix_fadvise pidfd_open eventfd eventfd_read"
    " eventfd_write splice copy_file_range getrandom setns unshare getresuid getresgid setresuid setresgid fdatasync"
    " pipe2 getxattr setxattr listxattr removexattr O_TMPFILE O_PATH O_DIRECT O_LARGEFILE O_NOATIME",
    select: "epoll",
    signal: "sigwaitinfo sigtimedwait SIGRTMIN SIGRTMAX SIGSTKFLT SIGPWR SIGPOLL SIGCLD",
    time: "CLOCK_BOOTTIME CLOCK_TAI pthread_getcpuclockid",
    mmap: "MADV_HUGEPAGE MADV_DONTFORK MADV_DOFORK MADV_REMOVE MAP_POPULATE",
    fcntl: "F_OFD_SETLK F_OFD_SETLKW F_OFD_GETLK F_ADD_SEALS F_SETPIPE_SZ F_GETPIPE_SZ",
    resource: "prlimit",
}
for module, names in MISSING.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)

def is_asked_by_molprof():
    return sys._getframe(2).f_globals["__name__"].startswith("molprof")

LIBRARY = ("prctl", "sched_getaffinity", "posix_fallocate", "memfd_create", "renameat2", "malloc_trim", "mallopt")

class CDLL(ctypes.CDLL):
    def __init__(self, name, *arguments, **options):
        # Libraries are built for this system, and may use what it has.
        if str(name).startswith(("libc.so", "libm.so", "librt.so")) and is_asked_by_molprof():
            raise OSError(f"{name}: no such file")
        super().__init__(name, *arguments, **options)
    def __getattr__(self, name):
        if self._name is None and name in LIBRARY:
            raise AttributeError(name)
        return super().__getattr__(name)

ctypes.CDLL = CDLL

FOLDERS = ("/proc", "/sys", "/dev/shm")

def is_missing(path):
    name = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else ""
    return any(name == folder or name.startswith(folder + "/") for folder in FOLDERS)

def hook(event, arguments):
    if event in ("open", "os.listdir", "os.scandir", "os.mkdir") and arguments and is_missing(arguments[0]):
        raise FileNotFoundError(2, "No such file or directory", arguments[0])

stat, fork, load = os.stat, os.fork, builtins.__import__

def stat_as_there(path, *arguments, **options):
    if is_missing(path):
        raise FileNotFoundError(2, "No such file or directory", path)
    return stat(path, *arguments, **options)

def fork_as_there():
    assert not is_asked_by_molprof(), "a fork, which macOS may not survive"
    return fork()

class Sys(types.ModuleType):
    platform = "darwin"
    def __getattribute__(self, name):
        return "darwin" if name == "platform" else getattr(sys, name)
    def __setattr__(self, name, value):
        setattr(sys, name, value)

def load_as_there(name, globals=None, *arguments, **options):
    own = name == "sys" and str((globals or {}).get("__name__")).startswith("molprof")
    return SYS if own else load(name, globals, *arguments, **options)

SYS = Sys("sys")
os.stat, os.fork, builtins.__import__ = stat_as_there, fork_as_there, load_as_there
sys.addaudithook(hook)
"""
QWEN, GENERIC = (str(ROOT / "traces" / f"cpu-{name}.json.gz") for name in ("qwen", "qwen-generic"))
COMMANDS = (
    ("report", QWEN, "--format", "json"),
    ("report", QWEN, "-o", "page.html"),
    ("compare", QWEN, GENERIC),
    ("ranks", "."),
    ("trim", QWEN, "--steps", "20:22", "-o", "few.json.gz"),
)


def place(folder: Path, code: str) -> dict[str, str]:
    """The environment of a process that runs `code` first."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(code)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return place(tmp_path_factory.mktemp("there") / "first", MACOS)


@pytest.fixture(scope="module")
def laptop(
    there: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """Runs `molprof ARGUMENTS` in FOLDER off a process that has imported all of molprof there."""
    own = {**there, "MOLPROF_CACHE": str(tmp_path_factory.mktemp("cache"))}  # nothing that was stored on Linux
    server = ForkServer(there["PYTHONPATH"], CAPTURE, MODELS, own)
    yield lambda folder, *arguments: server.run(arguments, folder, own, TIMEOUT_S)
    server.close()


@pytest.mark.parametrize("line", COMMANDS, ids=lambda line: " ".join(Path(part).name for part in line))
def test_a_command_prints_the_same_without_what_linux_alone_has(
    line: tuple[str, ...],
    tmp_path: Path,
    molprof: Cli,
    laptop: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    for rank in (0, 1):
        write_rank(tmp_path / f"rank{rank}.json", rank)
    plain = molprof(*line)
    for path in tmp_path.iterdir():
        if path.suffix in (".html", ".svg", ".gz"):
            path.unlink()
    found = laptop(tmp_path, *line)
    assert (plain.returncode, found.returncode) == (0, 0), plain.stderr + found.stderr
    assert found.stdout == plain.stdout
    assert "bug" not in found.stderr


def test_a_run_is_captured(tmp_path: Path, laptop: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    options = ("-n", "1", "--repeats", "1", "--warmup", "0", "--max-new-tokens", "8")
    done = laptop(tmp_path, "capture", "--model", "llama", "--lp", *options, "-o", "run.json.gz")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run.json.gz").is_file()


def test_a_trace_is_served_to_the_browser(tmp_path: Path, there: dict[str, str]) -> None:
    line = [sys.executable, "-m", "molprof", "open", QWEN, "--no-browser", "--port", "0"]
    with subprocess.Popen(line, cwd=tmp_path, env=there, text=True, stdout=-1, stderr=-1) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        try:
            with urllib.request.urlopen(address, timeout=TIMEOUT_S) as page:
                assert page.status == 200
        finally:
            process.send_signal(signal.SIGINT)
            errors = process.communicate(timeout=TIMEOUT_S)[1]
    assert process.returncode == 0, errors


def test_windows_is_told_of_wsl(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "molprof/__main__.py"), run_name="__main__")
    assert ended.value.code == 2
    assert re.fullmatch(r"molprof: error: .* WSL: wsl --install\n", capsys.readouterr().err)
