"""Commands print the same without Linux's own calls and files, as on macOS.

What a child process lacks is deleted before it imports anything, so that an unguarded use fails here too.
"""

from __future__ import annotations

import re
import runpy
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from conftest import ROOT, TIMEOUT_S, Cli, lines_in, with_path
from rank_traces import write_rank
from tiny import tokenizer

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
    ("ranks", "rank0.json", "rank1.json"),
    ("trim", QWEN, "--steps", "20:22", "-o", "few.json.gz"),
)


CAPTURE = "capture --model llama --lp -n 1 --repeats 1 --warmup 0 --max-new-tokens 8 -o run.json.gz"


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory, own_cache: Path) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("first")
    (folder / "sitecustomize.py").write_text(MACOS)
    # Nothing that was stored on Linux, but for what takes seconds.
    tokenizer("llama")
    cache = tmp_path_factory.mktemp("cache")
    shutil.copytree(own_cache / "tokenizers", cache / "tokenizers")
    return with_path(folder, Path(__file__).parent, MOLPROF_CACHE=str(cache))


def test_commands_print_the_same_without_what_linux_alone_has(
    tmp_path: Path, molprof: Cli, there: dict[str, str]
) -> None:
    (tmp_path / "there").mkdir()
    for folder in (tmp_path, tmp_path / "there"):
        for rank in (0, 1):
            write_rank(folder / f"rank{rank}.json", rank)
    *found, captured = lines_in(tmp_path / "there", there, *COMMANDS, CAPTURE.split())
    for line, (code, out, err) in zip(COMMANDS, found, strict=True):
        plain = molprof(*line)
        assert (plain.returncode, code) == (0, 0), plain.stderr + err
        assert out == plain.stdout
        assert "bug" not in err
    assert captured[0] == 0, captured
    assert (tmp_path / "there/run.json.gz").is_file()


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
