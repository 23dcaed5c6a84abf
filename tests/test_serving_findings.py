"""A served engine without its scheduler's trace: waiting of its worker counts neither as work nor as free time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from decoding_trace import Event, op
from finding_cases import Case, findings, plain
from tiny_trace import slice_

VLLM = "vllm/v1/"
WAIT = "vllm/distributed/device_communicators/shm_broadcast.py(961): dequeue"
SPIN = "vllm/distributed/utils.py(44): sched_yield"


def step(start: float, before_masks: float, masks: float) -> list[Event]:
    """A step of a worker, 100 us: a wait of 10, a forward of 20, a wait for masks, their applying, sampling."""

    def function(name: str, at: float, us: float) -> Event:
        return slice_("python_function", name, start + at, us)

    return [
        function(WAIT, 0, 10), function(SPIN, 1, 8), slice_("user_annotation", "execute_context_0(0)_generation_4(4)",
                                                           start + 10, 20),
        slice_("user_annotation", "gpu_model_runner: forward", start + 10, 20), op("aten::mm", start + 10, 20),
        function(WAIT, 32, before_masks), function(SPIN, 33, max(0, before_masks - 2)),
        *([function(f"{VLLM}structured_output/utils.py(1): apply_grammar_bitmask", 32 + before_masks, masks)]
          if masks else []),
        function(f"{VLLM}worker/gpu_model_runner.py(1): _sample", 94, 2), op("aten::argmax", start + 99, 1),
    ]  # fmt: skip


def worker(before_masks: float, masks: float, steps: int = 4) -> dict[str, Any]:
    return plain(*(step(100 * number, before_masks, masks) for number in range(steps)))


MASKED, FREE = worker(40, 10), worker(4, 0)


@pytest.mark.parametrize(
    "case",
    [
        # Applying 10 of 100 us, and 40 us of waiting before it; not the wait for the next step. The recorded span
        # begins behind the first wait.
        Case("constraint", MASKED, 200 / 390, {"apply_ns": 40_000, "wait_ns": 160_000},
             ("before applying them the worker waits 160 µs", "not recorded: filling masks", "Record the process"),
             quiet=(FREE,)),
        Case("scheduler_waits", MASKED, 190 / 390, {"waits": 7, "wait_ns": 190_000, "before_masks_ns": 160_000},
             ("7 waits, 190 µs", "160 µs of it right before masks are applied")),
        Case("scheduler_waits", FREE, 46 / 390, {"waits": 7, "wait_ns": 46_000, "before_masks_ns": 0}),
    ],
)  # fmt: skip
def test_what_a_worker_waits_for(tmp_path: Path, case: Case) -> None:
    case.check(tmp_path)


def test_waiting_is_no_work_outside_operators(tmp_path: Path) -> None:
    found = findings(tmp_path, worker(60, 0))
    assert "host_functions" not in found
    assert findings(tmp_path, MASKED)["constraint"].title == (
        "The constraint (masks): filling is not recorded, the rest takes 10.3 % of the time"
    )


def test_without_a_recorded_wait_there_is_no_bound(tmp_path: Path) -> None:
    events = [event for event in MASKED["traceEvents"] if event["name"] not in (WAIT, SPIN)]
    assert findings(tmp_path, {"traceEvents": events})["constraint"].gain is None


def test_the_note_stands_where_nothing_of_masks_is_recorded(tmp_path: Path) -> None:
    assert "masks_not_recorded" in findings(tmp_path, FREE)
    assert "masks_not_recorded" not in findings(tmp_path, MASKED)


def test_a_wait_that_contains_its_own_calls_is_followed_by_what_comes_after(tmp_path: Path) -> None:
    """Two threads: the wait of one is not before the masks of the other."""
    other = [{**event, "tid": 200} for event in step(0, 40, 0)]
    found = findings(tmp_path, plain(step(0, 4, 10), other))
    assert found["scheduler_waits"].figures["before_masks_ns"] == 4_000
