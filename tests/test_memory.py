"""Reading stops before a trace needs more memory than there is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from trace_rows import x

from molprof.analysis.reader import load
from molprof.analysis.reader.open import open_trace
from molprof.common.errors import TraceError
from molprof.common.memory import available_bytes

MACHINE = {"proc/meminfo": "MemTotal:       16000000 kB\nMemAvailable:    8000000 kB\n"}
# The limit of an outer group holds too.
GROUPS = {
    "proc/self/cgroup": "0::/job/step\n",
    "sys/fs/cgroup/job/memory.max": "5000\n",
    "sys/fs/cgroup/job/memory.current": "4000\n",
    "sys/fs/cgroup/job/memory.stat": "anon 3300\nfile 700\n",
    "sys/fs/cgroup/job/step/memory.max": "max\n",
    "sys/fs/cgroup/job/step/memory.current": "4000\n",
    "sys/fs/cgroup/job/step/memory.stat": "anon 3300\nfile 700\n",
}
# Beyond its limit.
FIRST_VERSION = {
    "proc/self/cgroup": "3:cpu,cpuacct:/job\n2:memory:/job\n",
    "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "5000\n",
    "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "6000\n",
    "sys/fs/cgroup/memory/job/memory.stat": "total_cache 100\n",
}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        (MACHINE, 8_192_000_000),
        ({**MACHINE, "proc/self/cgroup": "0::/\n"}, 8_192_000_000),
        ({**MACHINE, **GROUPS}, 1700),
        ({**MACHINE, **FIRST_VERSION}, 0),
    ],
    ids=["not told", "machine", "no limit", "outer group", "first version"],
)
def test_what_is_available(tmp_path: Path, files: dict[str, str], expected: int | None) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert available_bytes(tmp_path) == expected


def test_a_trace_that_does_not_fit_is_refused_before_the_engine_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([x(f"a{i}", i, 1) for i in range(100)]))
    monkeypatch.setattr(load, "available_bytes", lambda: 8_192_000_000)
    load.check_memory("a.json", 8_192_000, 1000)
    message = r"(?m)^a\.json: its 8,192,001 events need about 8\.2 GB of memory, and 8\.2 GB are available$"
    with pytest.raises(TraceError, match=message):
        load.check_memory("a.json", 8_192_001, 1000)
    monkeypatch.setattr(load, "available_bytes", lambda: 1000)
    with pytest.raises(TraceError, match="its 100 events need about"), open_trace(path):
        pass
