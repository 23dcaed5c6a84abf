"""The memory that a trace needs against the memory that there is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from trace_rows import x

from molprof.analysis.reader import load
from molprof.analysis.reader.load import check_memory
from molprof.analysis.reader.open import open_trace
from molprof.common.errors import TraceError
from molprof.common.memory import available_bytes

MEMINFO = "MemTotal:       16000000 kB\nMemAvailable:    8000000 kB\n"


def system(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"proc/meminfo": MEMINFO}, 8_192_000_000),
        ({"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/\n"}, 8_192_000_000),
        (
            {
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "0::/job/step\n",
                "sys/fs/cgroup/job/memory.max": "5000\n",
                "sys/fs/cgroup/job/memory.current": "4000\n",
                "sys/fs/cgroup/job/memory.stat": "anon 3300\nfile 700\n",
                "sys/fs/cgroup/job/step/memory.max": "max\n",
                "sys/fs/cgroup/job/step/memory.current": "4000\n",
                "sys/fs/cgroup/job/step/memory.stat": "anon 3300\nfile 700\n",
            },
            1700,
        ),
        (
            {
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "3:cpu,cpuacct:/job\n2:memory:/job\n",
                "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "5000\n",
                "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "6000\n",
                "sys/fs/cgroup/memory/job/memory.stat": "total_cache 100\n",
            },
            0,
        ),
    ],
    ids=["not told", "machine", "no limit", "limit of an outer group", "first version, over its limit"],
)
def test_what_is_available(tmp_path: Path, files: dict[str, str], expected: int | None) -> None:
    assert available_bytes(system(tmp_path, files)) == expected


def test_a_trace_that_does_not_fit_is_refused_with_both_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "available_bytes", lambda: 8_192_000_000)
    check_memory("a.json", 8_192_000, 1000)
    with pytest.raises(TraceError) as caught:
        check_memory("a.json", 8_192_001, 1000)
    assert str(caught.value) == "a.json: its 8,192,001 events need about 8.2 GB of memory, and 8.2 GB are available"
    assert caught.value.hint is not None


def test_it_is_refused_before_the_engine_takes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([x(f"a{i}", i, 1) for i in range(100)]))
    monkeypatch.setattr(load, "available_bytes", lambda: 1000)
    with pytest.raises(TraceError, match="its 100 events need about"), open_trace(path):
        pass
