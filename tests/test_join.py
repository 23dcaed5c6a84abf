"""`molprof join`: samples of a process that was not profiled, from any sampler, at their times in a trace."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from goldens import called

from molprof import api
from molprof.analysis.trace import Trace

BASE_S = 1_790_857_026
FILL = "vllm/v1/structured_output/backend_xgrammar.py"
# Operators from 0 to 10 ms and from 30 to 40 ms: the model waits for 20 ms, in which samples fill masks for 15 ms.
OPERATORS = [(0, 10_000), (30_000, 10_000)]
FRAMES = [{"name": "run", "file": "vllm/v1/engine/core.py", "line": 5}, {"name": "G.fill_bitmask", "file": FILL}]
SPEEDSCOPE = {
    "shared": {"frames": FRAMES},
    "profiles": [
        {
            "type": "sampled", "name": 'Process 12 Thread 34 "MainThread"', "unit": "milliseconds", "startValue": 0,
            "endValue": 30, "samples": [[0], [0, 1], [0]], "weights": [10, 15, 5],
        }
    ],
}  # fmt: skip
EVENTED = {
    "shared": {"frames": FRAMES},
    "profiles": [
        {
            "type": "evented", "name": "pid 12 tid 34", "unit": "seconds", "startValue": 0, "endValue": 0.03,
            "events": [
                {"type": "O", "frame": 0, "at": 0}, {"type": "O", "frame": 1, "at": 0.01},
                {"type": "C", "frame": 1, "at": 0.025}, {"type": "C", "frame": 0, "at": 0.03},
            ],
        }
    ],
}  # fmt: skip
CHROME = [
    {"ph": ph, "name": frame["name"], "pid": 12, "tid": 34, "ts": ts, "args": {"filename": frame["file"], "line": 1}}
    for ph, frame, ts in zip("BBEE", (*FRAMES, *FRAMES[::-1]), (0, 10_000, 25_000, 30_000), strict=True)
]
STACK = f"vllm/v1/engine/core.py(5): run;{FILL}(0): fill_bitmask"
LINES = "".join(
    f"{BASE_S + ms / 1000:.3f} {STACK if 15 <= ms < 30 else STACK.partition(';')[0]} 1\n" for ms in range(5, 35)
)
PERF = "".join(
    f"python 12/34 [001] {BASE_S + ms / 1000:.6f}:    1000 cpu-clock: \n"
    + (f"\t    7f01 py::fill_bitmask:/x/{FILL} (/tmp/perf-12.map)\n" if 15 <= ms < 30 else "")
    + "\t    7f00 main+0x10 (/usr/bin/python3)\n\n"
    for ms in range(5, 35)
)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    events: list[dict[str, Any]] = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 7, "tid": 7, "ts": ts, "dur": dur}
        for ts, dur in OPERATORS
    ]
    path = tmp_path / "trace.json"
    content = {"schemaVersion": 1, "baseTimeNanoseconds": BASE_S * 10**9, "traceEvents": events, "mine": [1]}
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("content", "starts_at"),
    [
        (json.dumps(SPEEDSCOPE), "+5ms"),
        (json.dumps(EVENTED), str(BASE_S + 0.005)),
        (json.dumps(CHROME), "+0.005"),
        (json.dumps({"traceEvents": CHROME}), "2026-10-01T12:17:06.005+00:00"),
        (LINES, None),
        (PERF, None),
    ],
)
def test_samples_have_their_times(tmp_path: Path, trace: Path, content: str, starts_at: str | None) -> None:
    (tmp_path / "samples").write_text(content)
    line = ["join", "trace.json", "samples", "-o", "both.json.gz"]
    code, _, err = called([*line, *([] if starts_at is None else ["--starts-at", starts_at])], tmp_path)
    assert code == 0, err
    assert "30.0 ms of them are in the time of the trace's events" in err
    report = api.report(tmp_path / "both.json.gz")
    (finding,) = [item for item in report.findings if item.id == "samples_of_masks"]
    assert finding.figures == pytest.approx(
        {"masks_ratio": 0.75, "masks_ns": 15e6, "sampled_ns": 20e6, "idle_ns": 20e6}, rel=1e-4
    )
    assert "fill_bitmask 15.0 ms" in finding.evidence
    assert "guessed" not in finding.evidence
    # They are no events of the trace.
    plain = api.report(trace)
    for name in ("events_by_category", "lost_events", "lanes"):
        assert getattr(report.trace, name) == getattr(plain.trace, name)
    assert report.counts == plain.counts
    with Trace(tmp_path / "both.json.gz") as joined:
        assert joined.sql("SELECT COUNT() AS count FROM slice")["count"].tolist() == [2]


def test_a_start_that_is_not_known_is_guessed_and_said(tmp_path: Path, trace: Path) -> None:
    samples = tmp_path / "samples.json"
    samples.write_text(json.dumps(CHROME))
    os.utime(samples, ns=(0, BASE_S * 10**9 + 35_000_000))
    code, _, err = called(["join", "trace.json", "samples.json", "-o", "both.json"], tmp_path)
    assert code == 0
    assert "their end is taken to be the time at which the file was written" in " ".join(err.split())
    report = api.report(tmp_path / "both.json")
    (finding,) = [item for item in report.findings if item.id == "samples_of_masks"]
    assert "when the samples began is guessed" in finding.evidence
    assert finding.figures["masks_ns"] == 15_000_000
    # Trimmed, exported and joined again, what was joined stays.
    for words in (
        "trim both.json --to 20ms -o small.json", "export both.json -o facts.json",
        "join facts.json samples.json --starts-at +1ms -o more.json",
    ):  # fmt: skip
        assert called(words.split(), tmp_path)[0] == 0
    kept = {name: json.loads((tmp_path / name).read_text())["molprof_samples"] for name in ("small.json", "more.json")}
    assert [len(some) for some in kept.values()] == [1, 2]
    spans = [samples["threads"][0]["spans"][0][0] for samples in kept["more.json"]]
    assert spans == [5_000_000, 1_000_000]


@pytest.mark.parametrize(
    ("content", "words", "message"),
    [
        ("", "", "holds no samples"),
        ("main;step;fill 3\n", "", "line 1 does not begin with a time"),
        ('{"profiles": [{"name": "x", "unit": "none"}], "shared": {"frames": []}}', "", "is 'none', not a time"),
        (json.dumps(CHROME), "--starts-at soon", "--starts-at 'soon' is no time"),
        (json.dumps(CHROME), "--starts-at +9s", "no sample was taken while the trace was recorded"),
    ],
)
def test_what_cannot_be_joined(tmp_path: Path, trace: Path, content: str, words: str, message: str) -> None:
    (tmp_path / "samples").write_text(content)
    code, _, err = called(["join", "trace.json", "samples", *words.split(), "-o", "both.json"], tmp_path)
    assert code in (2, 3)
    assert message in " ".join(err.split())
    assert not (tmp_path / "both.json").exists()
