"""transformers' continuous batching writes the texts of `generate`, in captures whose sums hold."""

from __future__ import annotations

import dataclasses
import gc
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from captures import captured, events, of, settings
from test_jump import GENERATE, SMILES, batches, lively, made, rows, runner
from test_marks import Log

from molprof import api
from molprof.analysis.documents.figures import figure_values
from molprof.common.errors import UsageError
from molprof.common.settings import CaptureSettings
from molprof.profiler.engines.runner import Runner

CONTINUOUS = dataclasses.replace(GENERATE, engine="continuous")


@pytest.mark.parametrize(("name", "processor"), [("llama", "grammar"), ("qwen", "vectorized")])
def test_the_text_is_that_of_generate(name: str, processor: str) -> None:
    expected, (found,) = (
        batches(runner(loop, name, processor, batch_size=2), "O", "CO", "C", size=3) for loop in (GENERATE, CONTINUOUS)
    )
    assert list(found.rows) == rows(expected)
    assert found.appended is not None
    assert [sum(counts) for counts in found.appended] == [len(row) for row in found.rows]
    assert max(found.rows_per_step) == 2
    assert sum(found.rows_per_step) == sum(map(len, found.rows))
    # The third prompt joins in the step after the first end.
    first = min(len(found.appended[row]) for row in (0, 1))
    assert (found.joined, found.arrived) == ((0, 0, first), None)
    assert found.appended[2][: first + 1] == (*[0] * first, 1)


def test_without_a_processor_and_sampled() -> None:
    plain = [runner(loop, processor=None) for loop in (GENERATE, CONTINUOUS)]
    expected, found = (rows(batches(run, *SMILES, bound=20)) for run in plain)
    assert found == expected
    asked = {"sampling": "sample", "top_k": 40, "min_p": 0.01, "seed": 5}
    drawn = runner(CONTINUOUS, processor="grammar", **asked)
    assert batches(drawn, "O", "C") == batches(drawn, "O", "C")


def test_requests_arrive_and_the_phases_are_those_of_generate() -> None:
    log = Log()
    run = runner(CONTINUOUS, processor="grammar", arrivals=0.1)
    (found,) = batches(run, "C", "C", "C", marks=log)
    assert found.appended is not None
    # One each ten steps, though there is room for all at once.
    assert [counts.index(1) for counts in found.appended] == [0, 10, 20]
    assert found.joined == found.arrived == (0, 10, 20)
    assert len(set(found.rows)) == 1
    steps = ["F", "P1", "P2", "S"] * found.steps
    assert log.heard == ["template 0", "tokenize 0", "begin 0", *steps, "end", "text 0"]
    (alone,) = batches(runner(CONTINUOUS, processor="grammar", arrivals=1 / 1000), "C", "C")
    # No step waits for a request: the second comes as the first has ended.
    assert set(alone.rows_per_step) == {1}
    assert alone.steps == 2 * len(alone.rows[0])
    assert alone.arrived == (0, len(alone.rows[0]))

    class Early(Log):
        frozen = 0

        def enough(self) -> bool:
            return self.heard.count("F") == 3

        def end(self) -> None:
            self.frozen = gc.get_freeze_count()

    gc.unfreeze()
    early = Early()
    (cut,) = batches(run, "C", "C", "C", marks=early)
    # What was loaded is no garbage, which transformers collects before the text is read.
    assert (early.frozen > 100_000, gc.get_freeze_count()) == (True, 0)
    assert (cut.steps, cut.rows) == (3, (found.rows[0][:3], (), ()))


def test_an_interrupt_ends_the_thread_first() -> None:
    heard, main = threading.Event(), threading.get_ident()

    class Killed(Log):
        def forward(self) -> None:
            super().forward()
            if self.heard.count("F") == 3:
                # The main thread notes it when it runs next, and calls the handler when this thread has ended.
                signal.pthread_kill(main, signal.SIGTERM)
                assert not heard.wait(1)

    def interrupt(number: int, frame: object) -> None:
        heard.set()
        raise InterruptedError

    (whole,) = batches(runner(CONTINUOUS, processor="grammar"), "CCCCC")
    before, log, threads = signal.signal(signal.SIGTERM, interrupt), Killed(), threading.active_count()
    try:
        with pytest.raises(InterruptedError):
            batches(runner(CONTINUOUS, processor="grammar"), "CCCCC", marks=log)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert 3 <= log.heard.count("F") < whole.steps
    assert threading.active_count() == threads


def test_a_capture_whose_thread_is_recorded(tmp_path: Path) -> None:
    asked = settings(processor="grammar", engine="continuous", window=(2, 5), repeats=1, warmup=0)
    result = captured(tmp_path / "out.json", asked)
    manifest = result.manifest
    assert (manifest.problems, manifest.resolved.host_reads) == ([], manifest.steps_per_batch[0])
    assert [(run.sequence, run.batch, run.row, run.valid) for run in manifest.molecules] == [
        (row, 0, row, True) for row in range(3)
    ]
    assert all(run.masked is not None and run.masked.own == run.masked.total for run in manifest.molecules)
    _, found = events(result.path)
    steps = [event for event in of(found, "user_annotation") if ".step " in event["name"]]
    assert [event["name"] for event in steps] == [f"molprof.step batch=0 step={step}" for step in range(2, 6)]
    assert {event["tid"] for event in of(found, "cpu_op")} == {event["tid"] for event in steps}
    report = api.report(result.path)
    assert {check.id for check in report.checks if not check.holds} <= {"wall_time"}
    assert report.run is not None
    assert (report.run.idle_row_steps, report.run.row_steps) == (0, report.run.generated_tokens)
    assert report.run.phases["processor"].host_ns
    values = figure_values(report)
    assert 0 < values["queued_p50_ns"] < values["first_token_p50_ns"] < values["request_p50_ns"]
    assert report.run.setup.loop == "input order, engine continuous"


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"kv_cache": "static"}, "continuous batching has a paged KV cache, not 'static'"),
        ({"compile": "default", "kv_cache": "dynamic"}, "calls its forward as it is, and cannot compile it"),
        ({"padding_multiple": 8}, "gives prompts no columns of padding"),
        ({"attention": "flex_attention"}, "has no attention 'flex_attention'"),
        ({"disagreement": True, "processor": "grammar"}, "disagreement is recorded in batches"),
        ({"full": True, "stacks": True}, "torch records no Python functions of the thread"),
        ({"generate_args": ("repetition_penalty=1.2",)}, "continuous batching does not apply repetition_penalty 1.2"),
        ({"forced_runs": True}, "engine 'continuous' neither feeds forced runs nor drops rows"),
        ({"processor": "generic"}, "the processor 'generic' has no table of states, which continuous batching takes"),
        ({"engine": "auto", "arrivals": 1.0}, "requests arrive in continuous batching only"),
    ],
)
def test_what_would_be_left_out_without_a_word_is_refused(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        dataclasses.replace(CONTINUOUS, **asked)


def test_a_processor_of_ones_own_without_a_table_is_refused() -> None:
    settings = CaptureSettings("tiny", processor="users:Sums", engine="continuous")
    run = Runner(lively("llama"), made("users:Sums", "llama"), settings)
    with pytest.raises(UsageError, match="the processor 'users:Sums' has no table of states"):
        batches(run, "C")
