"""The machine is watched right: figures of the system's files, doubts about times, the number of threads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from captures import captured, settings
from msgspec.structs import replace

from molprof import api
from molprof.analysis.documents.figures import Reports
from molprof.analysis.documents.report import warnings
from molprof.common import memory
from molprof.common.manifest import Machine, MachineSpan
from molprof.profiler import machine
from molprof.profiler.machine import Watch, other_processes, slowed


@pytest.fixture(autouse=True)
def quiet_machine() -> None:
    """The machine is what each test says."""


CORES = sorted(os.sched_getaffinity(0))


def system(root: Path, busy: int, steal: int, idle: int, waiting_us: int, throttled_us: int) -> None:
    """Files of a machine whose cores counted so many ticks each."""
    lines = [f"cpu{core} {busy} 0 0 {idle} 0 0 0 {steal} 0 0" for core in (*CORES, 999)]
    files = {
        "proc/stat": "\n".join(["cpu  1 1 1 1 1 1 1 1 0 0", *lines, "intr 5"]),
        "proc/pressure/cpu": f"some avg10=0.00 avg60=0.00 avg300=0.00 total={waiting_us}\nfull total=0\n",
        "proc/self/cgroup": "0::/mine\n",
        "sys/fs/cgroup/mine/cpu.stat": f"usage_usec 5\nthrottled_usec {throttled_us}\n",
    }
    files |= {f"sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq": "2400000\n" for core in CORES}
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_a_span_is_what_the_counters_grew_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0, 2_000_000_000])
    own = iter([os.times_result((1.0, 0.0, 0.0, 0.0, 0.0)), os.times_result((1.5, 0.0, 0.0, 0.0, 0.0))])
    monkeypatch.setattr(machine.time, "perf_counter_ns", lambda: next(now))
    monkeypatch.setattr(machine.os, "times", lambda: next(own))
    ticks = os.sysconf("SC_CLK_TCK")
    system(tmp_path, 0, 0, 0, 0, 0)
    watch = Watch(root=tmp_path)
    system(tmp_path, ticks, ticks // 2, ticks // 2, 500_000, 100_000)
    count = len(CORES)
    assert watch.end() == MachineSpan(
        wall_ns=2_000_000_000, other_cores=(count - 0.5) / 2, steal_ratio=0.25, throttled_ratio=0.05,
        waiting_ratio=0.25, mhz=2400.0,
    )  # fmt: skip


def test_what_the_system_does_not_tell_is_not_recorded(tmp_path: Path) -> None:
    span = Watch(root=tmp_path).end()
    assert span == MachineSpan(span.wall_ns)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("4:cpu,cpuacct:/a\n0::/\n")
    (tmp_path / "sys/fs/cgroup/cpu/a").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cpu/a/cpu.stat").write_text("nr_throttled 1\nthrottled_time 700\n")
    assert Watch(root=tmp_path)._throttled() == 700


def test_doubts_are_of_the_median_pass() -> None:
    quiet, busy = MachineSpan(1, 0.1, 0.0, 0.0), MachineSpan(1, 1.9, 0.3, 0.5)
    assert Machine(2, busy, [quiet, busy, quiet]).doubts() == ()
    assert Machine(2, None, [busy, busy, quiet]).doubts() == (
        "other programs kept 1.9 of 2 cores busy",
        "the hypervisor gave 30.0 % of the cores' time to other machines",
        "the control group was out of its share of CPU time for 50.0 % of the time",
    )
    gpu = replace(quiet, gpu_slowed=["temperature"], gpu_others=2)
    assert Machine(2, None, [quiet, gpu]).doubts() == (
        "the GPU's clock was held down (temperature)",
        "2 other processes on the GPU",
    )
    assert Machine(2, None, [MachineSpan(1)]).doubts() == ()


@pytest.mark.parametrize(
    ("mask", "reasons"),
    [(0x1, []), (0x44, ["power limit", "temperature"]), (0, []), (0x60, ["temperature"])],
)
def test_why_a_gpu_is_slow(mask: int, reasons: list[str]) -> None:
    assert slowed(mask) == reasons


@pytest.mark.parametrize(
    ("pids", "others"),
    [(set(), 0), ({1}, 0), ({1, 2}, 1), ({os.getpid()}, 0), ({os.getpid(), 1}, 1)],
)
def test_other_processes_on_a_gpu(pids: set[int], others: int) -> None:
    assert other_processes(pids) == others


def test_a_capture_records_the_machine_and_says_what_is_in_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Watch, "end", lambda self: MachineSpan(1, other_cores=1.5))
    result = captured(tmp_path / "out.json", settings(repeats=2, max_new_tokens=3))
    found = result.manifest.machine
    assert found is not None
    assert (found.before, found.passes) == (MachineSpan(1, other_cores=1.5), [MachineSpan(1, other_cores=1.5)] * 2)
    doubt = f"during the timed passes other programs kept 1.5 of {len(CORES)} cores busy"
    assert result.notes == (f"times are in doubt: {doubt}",)
    report = api.report(tmp_path / "out.json")
    assert report.run is not None
    assert report.run.machine == found
    assert f"times are not reliable: {doubt}" in warnings(Reports(("x",), (report,)))


@pytest.mark.parametrize(
    ("usual", "cores", "chosen", "expected"), [(8, 8, "", 7), (4, 8, "", 4), (1, 1, "", 1), (8, 8, "8", 8)]
)
def test_one_core_stays_free(
    monkeypatch: pytest.MonkeyPatch, usual: int, cores: int, chosen: str, expected: int
) -> None:
    monkeypatch.setattr(memory, "processors", lambda: cores)
    monkeypatch.setenv("OMP_NUM_THREADS", chosen)
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    assert memory.default_threads(usual) == expected


def test_waiting_threads_sleep_unless_the_user_wants_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"):
        monkeypatch.setenv(name, "x")
        monkeypatch.delenv(name)
    monkeypatch.setenv("KMP_BLOCKTIME", "7")
    memory.let_threads_sleep()
    found = [os.environ[name] for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")]
    assert found == ["passive", "0", "7"]
