"""What the driver's library knows of the GPU that passes run on, by a library that says so."""

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


class Driver(ModuleType):
    """The module `pynvml` on a machine with the GPU `GPU-ab`; what it cannot tell is named in `silent`."""

    class NVMLError(Exception):
        pass

    class NVMLLibraryMismatchError(Exception):
        pass

    def __init__(self, silent: str) -> None:
        super().__init__("pynvml")
        self.silent = silent

    def _tell(self, what: str, value: Any) -> Any:
        if what in self.silent:
            raise self.NVMLError
        return value

    def nvmlInit(self) -> None:
        self._tell("all", None)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        if uuid != "GPU-ab":
            raise self.NVMLError
        return 7

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:
        assert (handle, kind) == (7, 1)
        return int(self._tell("clock", 1980))

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:
        return int(self._tell("reasons", 0x24))

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[SimpleNamespace]:
        if "mismatch" in self.silent:
            raise self.NVMLLibraryMismatchError
        return [SimpleNamespace(pid=pid) for pid in (os.getpid(), -1, -2)]


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
    monkeypatch.setitem(sys.modules, "pynvml", Driver(silent))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=uuid))
    span = Watch(torch.device("cuda"), tmp_path).end()
    assert span == MachineSpan(span.wall_ns, gpu_mhz=mhz, gpu_slowed=slowed, gpu_others=others)
