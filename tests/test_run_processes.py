"""`molprof run --processes`: all processes of a program in one trace, on one clock, however they begin and end."""

from __future__ import annotations

import gzip
import json
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from goldens import called

from molprof import api

# Each child answers, so that times of two processes have an order. Then one ends, one is terminated, one is killed.
PROGRAM = """
import multiprocessing, os, signal, subprocess, sys, torch
from torch.profiler import record_function

def work(pipe):
    for number in range(3):
        with record_function(f"{os.getpid()} hears {number}"):
            pipe.recv()
        with record_function(f"{os.getpid()} answers {number}"):
            torch.ones(3).add(1)
            pipe.send(os.getpid())
    if pipe.recv() == "stay":
        signal.pause()

if __name__ == "__main__":
    for method, ending in (("spawn", None), ("fork", None), ("fork", "terminate"), ("fork", "kill")):
        here, there = multiprocessing.Pipe()
        child = multiprocessing.get_context(method).Process(target=work, args=(there,), name=f"{method} {ending}")
        child.start()
        for number in range(3):
            with record_function(f"asks {child.pid} {number}"):
                here.send(number)
            with record_function(f"has {child.pid} {number}"):
                here.recv()
        here.send("stay" if ending else "end")
        if ending:
            getattr(child, ending)()
        child.join()
        print(method, ending, child.pid, child.exitcode)
    subprocess.run([sys.executable, "-c", "print('no torch')"])
    sys.exit(7)
"""


def run(folder: Path, *words: str, **how: Any) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "molprof", "run", "--processes", *words]
    return subprocess.run(line, cwd=folder, check=False, capture_output=True, text=True, timeout=300, **how)


def spans(path: Path) -> tuple[dict[str, tuple[float, float]], list[dict[str, Any]], dict[str, Any]]:
    """Return start and end of annotations by name, the events, and the rest."""
    content = json.loads(gzip.decompress(path.read_bytes()))
    events = content.pop("traceEvents")
    marks = [event for event in events if event.get("cat") == "user_annotation"]
    return {event["name"]: (event["ts"], event["ts"] + event["dur"]) for event in marks}, events, content


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, dict[str, int]]:
    """The trace, what was said, and the children by method and ending."""
    folder = tmp_path_factory.mktemp("tree")
    (folder / "program.py").write_text(PROGRAM)
    done = run(folder, "-o", "all.json.gz", "program.py")
    assert done.returncode == 7, done.stderr
    children = re.findall(r"^(\w+ \w+) (\d+) (-?\d+)$", done.stdout, re.MULTILINE)
    assert [int(code) for *_, code in children] == [0, 0, -signal.SIGTERM, -signal.SIGKILL]
    return folder / "all.json.gz", done.stderr, {name: int(pid) for name, pid, _ in children}


def test_each_process_is_recorded_by_its_number(recorded: tuple[Path, str, dict[str, int]]) -> None:
    path, said, children = recorded
    _, events, content = spans(path)
    killed = children.pop("fork kill")
    assert "4 processes recorded" in said
    assert re.search(rf"killed before they had written, so that nothing of them is recorded: {killed} ", said)
    assert re.search(r"without torch, so without a trace: .*print\('no torch'\)", said)
    of_host = {event["pid"] for event in events if event.get("cat") in ("cpu_op", "user_annotation")}
    processes = {process["pid"]: process for process in content["molprof_processes"]}
    assert of_host == processes.keys() > set(children.values())
    for name, pid in children.items():
        assert processes[pid]["name"] == name
        assert {event["name"] for event in events if event["pid"] == pid} >= {"aten::ones", "aten::add"}
    assert not [event for event in events if event["name"].startswith("molprof.clock")]


def test_clocks_agree(recorded: tuple[Path, str, dict[str, int]]) -> None:
    """Nothing is heard before it is sent, to within what the marks of the clocks tell."""
    path, said, children = recorded
    found, _, content = spans(path)
    assert "agree with CLOCK_MONOTONIC to" in said
    apart_us = 2e-3 * max(process["clock_apart_ns"] for process in content["molprof_processes"])
    for pid in (pid for name, pid in children.items() if name != "fork kill"):
        for number in range(3):
            assert found[f"asks {pid} {number}"][0] < found[f"{pid} hears {number}"][1] + apart_us
            assert found[f"{pid} answers {number}"][0] < found[f"has {pid} {number}"][1] + apart_us
    report = api.report(path)
    assert report.trace.lost_events == 0
    assert not [doubt for doubt in report.certificate.doubts if "clocks are not aligned" in doubt.reason]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--processes", "--window", "0:1", "a.py"], "--processes takes no --window"),
        (["--after", "3s", "a.py"], "--after and --for go with --processes"),
        (["--processes", "no-such-command"], "no such file: no-such-command"),
    ],
)
def test_wrong_options(tmp_path: Path, words: Sequence[str], message: str) -> None:
    (tmp_path / "a.py").write_text("")
    code, _, err = called(["run", *words], tmp_path)
    assert code == 2
    assert message in " ".join(err.split())


WINDOW = """
import os, signal, time, torch
with torch.profiler.record_function("before"):
    torch.ones(3)
while not os.path.exists(os.path.join(os.environ["MOLPROF_PROCESSES"], "begin")):
    time.sleep(0.01)
time.sleep(2)  # until the profiler, which another thread starts, is on
for number in range(3):
    with torch.profiler.record_function("round"):
        torch.ones(3)
os.kill(os.getpid(), signal.SIGTERM)
"""


def test_a_window_in_time_and_a_signal(tmp_path: Path) -> None:
    """What a program does before is not recorded; one that a signal ends has its trace, and the exit code of that."""
    (tmp_path / "program.py").write_text(WINDOW)
    done = run(tmp_path, "--stacks", "--after", "0.1s", "--for", "60s", "-o", "one.json", "program.py")
    assert done.returncode == 128 + signal.SIGTERM, done.stderr
    events = json.loads((tmp_path / "one.json").read_bytes())["traceEvents"]
    assert [event["name"] for event in events if event.get("cat") == "user_annotation"] == ["round"] * 3
    assert any(event.get("cat") == "python_function" for event in events)
