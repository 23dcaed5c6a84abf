"""Command lines and calls in other processes end as reported, and leave no process behind."""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from molprof.common.errors import TakenError, UnsupportedError
from molprof.common.process import Ending, command_line, output_of, run_line
from molprof.common.process.guarded import Limits, call, out_of_memory
from molprof.common.process.workers import Worker, WorkerError, Workers

MARK = "MOLPROF_TEST_MARK"
GB = 10**9
SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]

pytestmark = [
    pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="no /proc on this system"),
    pytest.mark.usefixtures("anew"),
]


@pytest.fixture(autouse=True)
def mark(monkeypatch: pytest.MonkeyPatch) -> str:
    """Every process that a test starts, and those that they start, carry this."""
    monkeypatch.setenv(MARK, uuid.uuid4().hex)
    return f"{MARK}={os.environ[MARK]}"


def strays(mark: str) -> list[str]:
    """Command lines of living processes that carry the mark, this one apart; one that was killed has time to go."""
    until = time.monotonic() + 20.0
    while True:
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, UnicodeDecodeError):
                other = entry.name.isdigit() and int(entry.name) != os.getpid()
                marked = other and mark in (entry / "environ").read_text()
                if marked and (entry / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                    found.append((entry / "cmdline").read_text().replace("\0", " "))
        if not found or time.monotonic() > until:
            return found
        time.sleep(0.05)


# Calls, each of which ends in its own way.


def talks(what: str) -> list[str]:
    os.system("echo a library talks")
    return [what, "\x1b[31m"]


def hangs_here() -> None:
    subprocess.Popen(["sleep", "600"])
    # One that leaves the session, and one whose parent is gone.
    subprocess.Popen(["setsid", "sleep", "600"])
    subprocess.run(["sh", "-c", "setsid sleep 600 & exit 0"], check=True)
    Path(os.environ["READY"]).touch()
    time.sleep(600)


def holds_the_lock() -> None:
    ctypes.PyDLL(None).sleep(600)  # the interpreter's: no Python code runs any more


def raises() -> None:
    raise ValueError("two\nlines\n\nand a command")


def cannot() -> None:
    raise UnsupportedError("torch's own reason", "another GPU")


class OutOfMemoryError(RuntimeError):
    """Named as torch's."""


def gpu_memory() -> None:
    try:
        raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    except RuntimeError as problem:
        raise ValueError("the model does not fit") from problem


def leaves() -> None:
    os.write(2, b"last words\n")
    os._exit(3)


def allocates() -> None:
    held = []
    while True:
        held.append(bytearray(os.urandom(1) * 50_000_000))


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("test_process:raises", Ending("failed", "ValueError: two lines")),
        ("test_process:cannot", Ending("unsupported", "torch's own reason", hint="another GPU")),
        ("test_process:gpu_memory", Ending("out of memory", "ValueError: the model does not fit")),
        ("test_process:leaves", Ending("failed", "ended with code 3: last words", 3)),
        ("os:abort", Ending("failed", "ended by SIGABRT, in _answer (guarded.py:", -6)),
        ("absent:x", Ending("failed", "No module named 'absent'", missing="absent")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_call_that_fails_says_why(mark: str, target: str, expected: Ending) -> None:
    ending = call(target, limits=Limits(60.0))
    assert ending.message is not None
    assert ending.message.startswith(expected.message or "")
    for name in ("state", "exit_code", "hint", "missing", "value"):
        assert getattr(ending, name) == getattr(expected, name), ending
    if target == "test_process:raises":
        assert ending.stack is not None
        assert ending.stack[-1] == "and a command"
        assert any("in raises" in line for line in ending.stack)
    assert strays(mark) == []


def test_a_call_returns_json_and_what_libraries_print_is_no_answer() -> None:
    ending = call("test_process:talks", "x", limits=Limits(60.0))
    assert (ending.state, ending.value, ending.message, ending.stack) == ("ok", ["x", "\x1b[31m"], None, None)
    assert 0 < ending.seconds < 60


@pytest.mark.parametrize(("target", "where"), [("hangs_here", "hangs_here"), ("holds_the_lock", "holds_the_lock")])
def test_a_call_that_hangs_is_killed_with_all_it_started_and_says_where_it_hung(
    mark: str, target: str, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("READY", str(tmp_path / "ready"))
    ending = call(f"test_process:{target}", limits=Limits(4.0))
    assert ending.state == "timed out"
    assert f"killed at the limit of 4 s, in {where} (test_process.py:" in (ending.message or "")
    assert strays(mark) == []


def test_a_call_without_end_of_memory_is_stopped(mark: str) -> None:
    ending = call("test_process:allocates", limits=Limits(60.0, GB))
    assert ending.state == "out of memory"
    assert (ending.message or "").startswith("killed at ")
    assert (ending.message or "").endswith(" GB resident, the limit is 1.0 GB")
    assert strays(mark) == []


def test_nothing_outlives_a_caller_that_is_killed(mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("READY", str(tmp_path / "ready"))
    code = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        "from molprof.common.process.guarded import Limits, call\n"
        "call('test_process:hangs_here', limits=Limits(60.0))"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as caller:
        while not (tmp_path / "ready").exists():
            assert caller.poll() is None
            time.sleep(0.05)
        caller.kill()
    assert strays(mark) == []


@pytest.mark.parametrize(
    ("problem", "found"),
    [
        (RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED"), True),
        (MemoryError(), True),
        (ValueError("out of memory"), False),
        (RuntimeError("shape mismatch"), False),
        (None, False),
    ],
)
def test_allocations_that_failed(problem: BaseException | None, found: bool) -> None:
    assert out_of_memory(problem) is found


def test_a_command_lines_end_is_told(tmp_path: Path) -> None:
    ending = run_line(command_line(["report", "absent.json"]), tmp_path, log := io.BytesIO())
    assert ending == Ending("failed", "cannot read absent.json: No such file or directory", 2)
    assert log.getvalue().startswith(b"molprof: error: cannot read absent.json")
    script = "import subprocess; subprocess.Popen(['yes', 'still here']); print('done', flush=True)"
    assert run_line([sys.executable, "-c", script], tmp_path, log := io.BytesIO(), 60.0) == Ending("ok")
    assert b"done" in log.getvalue()
    killed = run_line([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], tmp_path, io.BytesIO())
    assert killed == Ending("failed", "killed by SIGKILL, as the system does when memory runs out", -9)


def test_a_command_line_is_stopped_at_its_limit(mark: str, tmp_path: Path) -> None:
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True)\n"
    line = [sys.executable, "-c", f"{deaf}time.sleep(60)"]
    ending = run_line(line, tmp_path, log := io.BytesIO(), limit_s=2.0, grace_s=0.5)
    assert ending == Ending("timed out", "stopped at its limit of 2 s", -signal.SIGKILL)
    assert log.getvalue() == b"deaf\n"
    assert run_line(SLEEP, tmp_path, io.BytesIO(), limit_s=0.5).exit_code == -signal.SIGTERM
    script = f"import subprocess, time; subprocess.Popen({SLEEP!r}); time.sleep(60)"
    with pytest.raises(subprocess.TimeoutExpired):
        output_of([sys.executable, "-c", script], limit_s=2.0)
    assert strays(mark) == []


def test_what_a_command_printed() -> None:
    done = output_of([sys.executable, "-c", "import sys; print('out'); sys.exit('said')"])
    assert (done.returncode, done.stdout, done.stderr) == (1, "out\n", "said\n")


def test_an_interrupt_while_a_process_starts_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []

    class Interrupted(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self)
            signal.raise_signal(signal.SIGINT)
            assert self.poll() is None

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_line(SLEEP, tmp_path, io.BytesIO())
    assert [item.returncode for item in started] == [-signal.SIGTERM]
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler


def test_a_child_does_not_outlive_whoever_started_it(mark: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "hang.json")
    code = (
        "import subprocess\n"
        "from molprof.common.process import command_line\n"
        "subprocess.Popen(command_line(['report', 'hang.json']), start_new_session=True).wait()"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path)
    with (tmp_path / "hang.json").open("wb"):  # opens when the child has opened it
        parent.kill()
        parent.wait()
        assert strays(mark) == []


def works(what: str) -> int:
    """A call of a `Worker`; it returns the number of the process."""
    if what == "refused":
        raise TakenError("taken", Path("kept"))
    if what == "wrong":
        raise KeyError(what)
    if what == "exits":
        raise SystemExit("out of luck")
    if what == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    while what == "hangs":
        time.sleep(1)
    return os.getpid()


@pytest.mark.parametrize("copied", [False, True])
def test_a_worker_runs_many_calls_and_is_replaced_when_it_fails(mark: str, copied: bool) -> None:
    worker = Worker(copied=copied)
    first = worker.run(works, "")
    assert first != os.getpid()
    with pytest.raises(TakenError, match="taken") as refused:
        worker.run(works, "refused")
    assert (refused.value.kept, refused.value.hint) == (Path("kept"), None)
    with pytest.raises(WorkerError, match=r"^KeyError: 'wrong'$"):
        worker.run(works, "wrong")
    assert worker.run(works, "") == first
    with pytest.raises(WorkerError, match=r"^killed by SIGKILL, as the system does"):
        worker.run(works, "killed")
    second = worker.run(works, "")
    with pytest.raises(WorkerError, match=r"^out of luck$"):
        worker.run(works, "exits")
    third = worker.run(works, "")
    os.kill(third, signal.SIGKILL)  # while it has nothing to do
    while ") Z" not in Path(f"/proc/{third}/stat").read_text():
        time.sleep(0.01)
    worker.limit_s = 0.3
    with pytest.raises(WorkerError, match=r"^it took over 0.3 s$"):
        worker.run(works, "hangs")
    assert len({first, second, third}) == 3
    worker.kill()
    worker.close()
    assert strays(mark) == []


@pytest.mark.parametrize("copied", [False, True])
def test_workers_are_an_executor_that_waits_or_ends_them(mark: str, copied: bool) -> None:
    with Workers(2, copied=copied) as workers:
        assert len(set(workers.map(works, [""] * 9))) <= 2
    workers = Workers(2, copied=copied)
    hanging = [workers.submit(works, "hangs") for _ in range(3)]
    workers.shutdown(wait=False, cancel_futures=True)
    assert [future.cancelled() for future in hanging] == [False, False, True]
    with pytest.raises(WorkerError):
        hanging[0].result()
    assert strays(mark) == []
