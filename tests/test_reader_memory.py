"""The engine keeps no more of fed events than it needs, and loses no rows between pieces."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from molprof.analysis.reader.load import load_trace
from molprof.analysis.reader.open import open_trace
from molprof.analysis.trace_processor import open_engine
from molprof.analysis.trace_processor.state import memory_bytes

# Several pieces of what the engine gets.
EVENTS = 200_000
# A state begins with an address.
_ADDRESS_BYTES = 8


def written(path: Path, starts_us: np.ndarray, durations_us: np.ndarray) -> Path:
    """A trace of launches and kernels in turn, each on a track of its own kind."""
    lines = []
    for number, (start, duration) in enumerate(zip(starts_us.tolist(), durations_us.tolist(), strict=True)):
        category, pid = ("kernel", 0) if number % 2 else ("cuda_runtime", 1)
        correlation, track = (number // 2 + 1, ',"device":0,"stream":7') if number % 2 else (number, "")
        lines.append(
            f'{{"ph":"X","cat":"{category}","name":"{category} {number % 7}","pid":{pid},"tid":7,'
            f'"ts":{start},"dur":{duration},"args":{{"correlation":{correlation}{track}}}}}'
        )
    path.write_text('{"traceEvents":[\n' + ",\n".join(lines) + "\n]}")
    return path


@pytest.mark.parametrize("moments", [1, 5, 50_000], ids=lambda moments: f"{moments} moments")
def test_slices_at_the_seams_of_pieces_are_in_order(tmp_path: Path, moments: int) -> None:
    count = 50_000
    starts = np.arange(count) * moments // count
    path = written(tmp_path / "trace.json", starts, np.zeros(count, dtype=np.int64))
    with open_trace(path, stacks=False, all_args=False) as (engine, info):
        rows = engine.query("SELECT ts, dur, name, EXTRACT_ARG(arg_set_id, 'args.correlation') AS number FROM slice")
        problems = engine.query("SELECT name FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0")
    assert info.lost_events == 0
    assert rows["ts"].tolist() == (starts * 1000).tolist()
    numbers = np.arange(count)
    assert rows["number"].tolist() == np.where(numbers % 2, numbers // 2 + 1, numbers).tolist()
    names = [f"{'kernel' if number % 2 else 'cuda_runtime'} {number % 7}" for number in range(count)]
    assert rows["name"].tolist() == names
    assert [len(column) for column in problems.values()] == [0]


def test_events_are_freed_while_tables_fill(tmp_path: Path) -> None:
    starts = np.arange(EVENTS) * 3
    path = written(tmp_path / "trace.json", starts, np.full(EVENTS, 2))
    sizes = []
    for trace in (written(tmp_path / "small.json", starts[:1], starts[:1]), path):
        with open_engine() as engine:
            load_trace(trace, engine, stacks=False, all_args=False, check=False)
            state = engine.state()
            assert state is not None
            sizes.append(memory_bytes(memoryview(state)[_ADDRESS_BYTES:]))
    # 435 bytes if sorted events are kept to the end.
    assert (sizes[1] - sizes[0]) / EVENTS < 350, sizes
