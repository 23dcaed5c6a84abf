"""Watches the machine during passes: load by other programs, steal, throttling, clocks, others on the GPU."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from molprof.common.manifest import MachineSpan
from molprof.common.memory import numbers
from molprof.profiler.environment import ask_nvml

if TYPE_CHECKING:
    import torch

# NVML's reasons for a lower clock, by bit: nvmlClocksEventReasons. Idle, settings and displays are no slowdown.
_REASONS = {
    0x4: "power limit",
    0x8: "hardware slowdown",
    0x20: "temperature",
    0x40: "temperature",
    0x80: "power brake",
}
_CLOCK_SM = 1  # nvmlClockType_t
_TICKS = os.sysconf("SC_CLK_TCK")


class Watch:
    """Measures spans of time, one after the other; `root` is for tests."""

    def __init__(self, device: torch.device | None = None, root: Path = Path("/")) -> None:
        self._device = device if device is not None and device.type == "cuda" else None
        self._root = root
        self._cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        self._last = self._read()

    def begin(self) -> None:
        """Begin a span now."""
        self._last = self._read()

    def end(self) -> MachineSpan:
        """Return the span since `begin` or the last `end`. The GPU is read last, which takes a moment."""
        first, last = self._last, self._read()
        self._last = last
        grown = {name: last[name] - first[name] for name in first.keys() & last.keys()}
        wall_ns = max(1, round(grown["at_ns"]))
        return MachineSpan(
            wall_ns=wall_ns,
            other_cores=max(0.0, grown["busy_s"] - grown["own_s"]) / (wall_ns / 1e9) if "busy_s" in grown else None,
            steal_ratio=grown["steal_s"] / grown["all_s"] if grown.get("all_s") else None,
            throttled_ratio=grown["throttled_ns"] / wall_ns if "throttled_ns" in grown else None,
            waiting_ratio=min(1.0, 1000 * grown["waiting_us"] / wall_ns) if "waiting_us" in grown else None,
            mhz=self._mhz(),
            **(_gpu(self._device) if self._device is not None else {}),
        )

    def _read(self) -> dict[str, float]:
        """Return counters that only grow, as far as the machine reports them."""
        times = os.times()
        counts: dict[str, float] = {"at_ns": time.perf_counter_ns(), "own_s": times.user + times.system}
        with contextlib.suppress(OSError, ValueError, IndexError):
            counts |= self._cpu()
        with contextlib.suppress(OSError, ValueError, IndexError):
            some = (self._root / "proc/pressure/cpu").read_text().split("\n", 1)[0]
            counts["waiting_us"] = int(some.rpartition("total=")[2])
        if (throttled := self._throttled()) is not None:
            counts["throttled_ns"] = throttled
        return counts

    def _cpu(self) -> dict[str, float]:
        """Return seconds of this process's cores: busy by all programs, stolen, and all: proc(5), /proc/stat."""
        wanted = {f"cpu{core}" for core in self._cores} or {"cpu"}
        busy = steal = whole = 0
        for line in (self._root / "proc/stat").read_text().splitlines():
            name, *ticks = line.split()
            if name in wanted:
                user, nice, system, idle, wait, irq, soft, stolen = map(int, ticks[:8])
                busy += user + nice + system + irq + soft
                steal += stolen
                whole += user + nice + system + idle + wait + irq + soft + stolen
        return {"busy_s": busy / _TICKS, "steal_s": steal / _TICKS, "all_s": whole / _TICKS}

    def _throttled(self) -> int | None:
        """Return the time that the control group of this process was throttled, ns; of both versions."""
        with contextlib.suppress(OSError, ValueError):
            for line in (self._root / "proc/self/cgroup").read_text().splitlines():
                _, controllers, path = line.split(":", 2)
                version_1 = "cpu" in controllers.split(",")
                folder = self._root / ("sys/fs/cgroup/cpu" if version_1 else "sys/fs/cgroup")
                if controllers and not version_1:
                    continue
                with contextlib.suppress(OSError):
                    counters = numbers(folder / path.strip("/") / "cpu.stat")
                    if "throttled_usec" in counters:
                        return 1000 * counters["throttled_usec"]
                    if "throttled_time" in counters:
                        return counters["throttled_time"]
        return None

    def _mhz(self) -> float | None:
        clocks = []
        for core in self._cores:
            with contextlib.suppress(OSError, ValueError):
                file = self._root / f"sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq"
                clocks.append(int(file.read_text()) / 1000)
        return sum(clocks) / len(clocks) if clocks else None


def _gpu(device: torch.device) -> dict[str, Any]:
    """Return the driver's figures of the GPU; None for unknown ones."""
    import torch

    uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"

    def ask(name: str, *more: Any) -> Any:
        return ask_nvml(lambda nvml: getattr(nvml, name)(nvml.nvmlDeviceGetHandleByUUID(uuid), *more))

    users = ask("nvmlDeviceGetComputeRunningProcesses")
    return {
        "gpu_mhz": ask("nvmlDeviceGetClockInfo", _CLOCK_SM),
        # By its old name, which all drivers know.
        "gpu_slowed": slowed(ask("nvmlDeviceGetCurrentClocksThrottleReasons") or 0),
        "gpu_others": None if users is None else other_processes({user.pid for user in users}),
    }


def slowed(bits: int) -> list[str]:
    """Return why a GPU's clock is lower, from the driver's bits."""
    return sorted({reason for bit, reason in _REASONS.items() if bits & bit})


def other_processes(pids: set[int]) -> int:
    """Return the number of other processes that compute on a GPU, from all that do."""
    # In a container the driver may show the numbers that processes have outside: then one of them is this process.
    return len(pids - {os.getpid()}) if os.getpid() in pids else max(0, len(pids) - 1)
