"""Figures of the GPU during passes come from the driver's library, here a stand-in."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from molprof.common.manifest import MachineSpan
from molprof.profiler.machine import Watch


class NVMLError(Exception):
    pass


class NVMLLibraryMismatchError(Exception):
    pass


def driver(silent: str) -> ModuleType:
    """The module `pynvml` on a machine with the GPU `GPU-ab`; what it cannot tell is named in `silent`."""

    def told(what: str, value: Any) -> Any:
        if what in silent:
            raise NVMLError
        return value

    def handle(uuid: str) -> int:
        if uuid != "GPU-ab":
            raise NVMLError
        return 7

    def processes(of: int) -> list[SimpleNamespace]:
        if "mismatch" in silent:
            raise NVMLLibraryMismatchError
        return [SimpleNamespace(pid=pid) for pid in (os.getpid(), -1, -2)]

    made: Any = ModuleType("pynvml")
    made.NVMLError, made.NVMLLibraryMismatchError = NVMLError, NVMLLibraryMismatchError
    made.nvmlInit = lambda: told("all", None)
    made.nvmlDeviceGetHandleByUUID = handle
    made.nvmlDeviceGetClockInfo = lambda of, kind: told("clock", {(7, 1): 1980}[of, kind])
    made.nvmlDeviceGetCurrentClocksThrottleReasons = lambda of: told("reasons", 0x24)
    made.nvmlDeviceGetComputeRunningProcesses = processes
    return made  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("uuid", "silent", "mhz", "slowed", "others"),
    [
        ("ab", "", 1980, ["power limit", "temperature"], 2),
        ("ab", "clock", None, ["power limit", "temperature"], 2),
        ("ab", "reasons mismatch", 1980, [], None),
        ("cd", "", None, [], None),
        ("ab", "all", None, [], None),
    ],
    ids=["told", "no clock", "older driver", "another GPU", "no driver"],
)
def test_the_driver_tells_of_the_gpu(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    uuid: str,
    silent: str,
    mhz: int | None,
    slowed: list[str],
    others: int | None,
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", driver(silent))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=uuid))
    span = Watch(torch.device("cuda"), tmp_path).end()
    assert span == MachineSpan(span.wall_ns, gpu_mhz=mhz, gpu_slowed=slowed, gpu_others=others)
