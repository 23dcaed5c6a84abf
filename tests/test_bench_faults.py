"""What becomes of cases that go wrong: a status for each, nothing lost, and no process left."""

from __future__ import annotations

import os
import uuid

import bench_faults
import pytest
from strays import MARK, strays

from molprof.common.errors import RunError
from molprof.profiler.bench.cases import GenerateCase, to_json
from molprof.profiler.bench.facts import Facts
from molprof.profiler.bench.isolate import Ended, Limits, innermost, run_isolated
from molprof.profiler.bench.schedule import read_machine

WORKER = "bench_faults:main"
FACTS = Facts("cpu", None, False, (), bench_faults.ENVIRONMENT)
LONG = Limits(60.0)
GB = 10**9

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="no /proc on this system")


@pytest.fixture(autouse=True)
def mark(monkeypatch: pytest.MonkeyPatch) -> str:
    """Every process that a test starts, and those that they start, carry this."""
    value = uuid.uuid4().hex
    monkeypatch.setenv(MARK, value)
    return value


def case(fault: str, rows: int = 1) -> GenerateCase:
    return GenerateCase(model=fault, batch_size=rows, count=rows)


def run(fault: str, limits: Limits = LONG) -> Ended:
    return run_isolated(to_json(case(fault)), limits, WORKER)


def test_a_case_that_is_ok_gives_its_figures(mark: str) -> None:
    ended = run("ok")
    assert (ended.status, ended.message, ended.stack, ended.left) == ("ok", None, None, False)
    assert ended.answer == {"figures": bench_faults.FIGURES, "environment": bench_faults.ENVIRONMENT}
    assert strays(mark) == []


def test_what_libraries_print_is_no_answer() -> None:
    assert run("talk").answer["figures"] == bench_faults.FIGURES


def test_a_case_that_hangs_is_killed_with_all_it_started_and_says_where_it_hung(mark: str) -> None:
    ended = run("sleep", Limits(3.0))
    assert ended.status == "hung"
    assert ended.message is not None
    assert ended.message.startswith("killed at the limit of 3 s, in stuck_here (bench_faults.py:")
    assert ended.stack is not None
    assert any("in stuck_here" in line for line in ended.stack)
    assert not ended.left
    assert strays(mark) == []


def test_the_stack_is_told_where_no_python_runs_any_more(mark: str) -> None:
    ended = run("hold the lock", Limits(2.0))
    assert ended.status == "hung"
    assert ended.message is not None
    assert ", in run (bench_faults.py:" in ended.message
    assert strays(mark) == []


@pytest.mark.parametrize(
    ("fault", "status", "message"),
    [
        ("raise", "failed", "ValueError: no such luck"),
        ("unsupported", "unsupported", "torch's own reason"),
        ("memory error", "out of memory", "MemoryError"),
        ("GPU memory", "out of memory", "ValueError: the model does not fit"),
        ("leave", "failed", "ended with code 3 and no answer: last words"),
        ("killed", "failed", "ended by SIGKILL"),
    ],
)
def test_a_case_that_fails_says_why(mark: str, fault: str, status: str, message: str) -> None:
    ended = run(fault)
    assert (ended.status, (ended.message or "")[: len(message)]) == (status, message)
    assert ended.answer.get("figures") is None
    assert strays(mark) == []


def test_a_crash_names_its_signal_and_where_it_was() -> None:
    ended = run("segfault")
    assert ended.status == "failed"
    assert ended.message is not None
    assert ended.message.startswith("ended by SIGSEGV, in ")
    assert ended.stack is not None
    assert any("bench_faults.py" in line for line in ended.stack)


def test_a_failure_keeps_the_whole_traceback() -> None:
    stack = run("raise").stack
    assert stack is not None
    assert stack[-1] == "ValueError: no such luck\x1b[31m"
    assert any("bench_faults.py" in line for line in stack)


def test_allocating_without_end_is_out_of_memory_and_not_a_dead_machine(mark: str) -> None:
    ended = run("allocate", Limits(60.0, GB))
    assert ended.status == "out of memory"
    assert ended.message is not None
    assert ended.message.startswith("killed at ")
    assert ended.message.endswith(" GB resident, the limit is 1.0 GB")
    assert ended.wall_s < 60
    assert strays(mark) == []


@pytest.mark.parametrize(
    ("stack", "place"),
    [
        ([], None),
        (["Current thread 0x1 (most recent call first):", '  File "/a/b.py", line 3 in f'], "f (b.py:3)"),
        (
            ["Thread 0x2 (most recent call first):", '  File "/a/w.py", line 9 in wait', "",
             "Thread 0x1 [main] (most recent call first):", '  File "/a/b.py", line 3, in <lambda>'],
            "<lambda> (b.py:3)",
        ),
    ],
    ids=["none", "one thread", "the main thread is last"],
)  # fmt: skip
def test_innermost(stack: list[str], place: str | None) -> None:
    assert innermost(stack) == place


def test_the_machine_is_read_by_a_process_of_its_own() -> None:
    assert read_machine("auto", None, worker=WORKER) == FACTS
    with pytest.raises(RunError, match="cannot find out what this machine can run: ended with code 1"):
        read_machine("auto", None, worker="no_such_module:main")
