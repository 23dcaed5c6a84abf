"""The finding about the constraint comes first, small or not, and its advice suits the run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import tiny_trace
from captures import captured, inputs, settings
from decoding_trace import Event, decoding, launched, op
from finding_cases import plain
from tiny_trace import slice_

from molprof import api
from molprof.analysis.figures.model import Finding

TRACES = Path(__file__).parent.parent / "traces"
CORPUS = os.environ.get("MOLPROF_CORPUS")
MODEL = {"parameters": 30_000_000}


def found(tmp_path: Path, content: dict[str, Any]) -> list[Finding]:
    """Findings in their order, without warnings."""
    report = api.report(tiny_trace.write(tmp_path / "trace.json.gz", content))
    return [item for item in report.findings if not item.warning]


def run_of(
    processor: str | None, processor_ns: int = 800_000, per_step: Any = lambda start: [], **changes: Any
) -> dict[str, Any]:
    """Four steps of 1 ms; so much unprofiled time of the processor in all of them."""
    content = decoding(per_step, processor=processor, model=MODEL, generation=changes)
    for repeat in content["molprof"]["timings"]["repeats"]:
        repeat["phases_ns"]["processor"] = processor_ns
    return content


def program(processors: list[dict[str, Any]], parameters: dict[str, str], **changes: Any) -> dict[str, Any]:
    """A program of one's own with these processors and arguments of `generate`."""
    names = ", ".join(item["name"] for item in processors) or None
    content = run_of(names, processor_parameters=parameters, **changes)
    each = {"place": 0, "own": True, "batches": 1, "time_ns": 400_000, "steps": 4}
    content["molprof"]["program"] = {"processors": [{**each, **item} for item in processors]}
    return content


def test_a_large_operator_comes_after_a_small_constraint(tmp_path: Path) -> None:
    first, *others = found(tmp_path, run_of("vectorized", 30_000, lambda start: [op("aten::mm", start + 10, 500)]))
    assert first.id == "constraint"
    assert first.title == "The constraint (vectorized) takes 0.93 % of the steps: the model sets the time"
    assert first.fix == "Leave it: the steps can lose 0.93 % at most."
    assert "without it 99.1 % of the steps remain: 74.3 % are forwards" in first.evidence
    (product,) = [item for item in others if item.id == "host_operators"]
    assert product.note
    content = run_of("vectorized", 30_000, lambda start: [op("aten::mm", start + 10, 500)])
    content["molprof"]["model"]["parameters"] = 7_000_000_000
    assert [item.note for item in found(tmp_path, content) if item.id == "host_operators"] == [False]


def test_a_run_without_a_constraint_has_none(tmp_path: Path) -> None:
    assert "constraint" not in [item.id for item in found(tmp_path, decoding())]
    assert "constraint" not in [item.id for item in found(tmp_path, program([], {"stop_strings": '["x"]'}))]


def test_the_share_has_its_range_over_passes(tmp_path: Path) -> None:
    content = run_of("generic")
    for processor_ns, repeat in zip(
        (400_000, 800_000, 1_600_000), content["molprof"]["timings"]["repeats"], strict=True
    ):
        repeat["phases_ns"] = {**repeat["phases_ns"], "processor": processor_ns}
        repeat["wall_ns"] = 3_200_000 + processor_ns
    first = found(tmp_path, content)[0]
    assert "800 µs of 4.00 ms in steps, unprofiled: 20.0 % (11.1 % to 33.3 % in 3 passes)" in first.evidence
    assert first.figures["share_low_ratio"] == pytest.approx(1 / 9)
    assert first.figures["share_high_ratio"] == pytest.approx(1 / 3)


def test_steps_and_rows_have_percentiles(tmp_path: Path) -> None:
    content = run_of("generic")
    for repeat in content["molprof"]["timings"]["repeats"]:
        repeat["step_phases_ns"] = {"processor": [[100_000, 100_000, 100_000, 100_000, 400_000]]}
    first = found(tmp_path, content)[0]
    # Five steps of eight rows, with the prefill's.
    assert (
        "; by step p50 100 µs, longest 400 µs; per row, of 8, 20.0 µs, p50 12.5 µs, longest 50.0 µs" in first.evidence
    )
    assert first.figures["row_ns"] == 20_000


def test_what_it_does_in_recorded_steps(tmp_path: Path) -> None:
    def per_step(start: int) -> list[Event]:
        return [
            op("aten::item", start + 600, 10), op("aten::_local_scalar_dense", start + 602, 6),
            op("aten::item", start + 620, 10), op("aten::_local_scalar_dense", start + 622, 6),
            op("aten::index_fill_", start + 640, 30), op("aten::mm", start + 100, 100),
        ]  # fmt: skip

    first = found(tmp_path, run_of("package.module:Mine", per_step=per_step))[0]
    # 10 + 10 + 30 of the 200 µs of the phase.
    assert "of 200 µs per recorded step 150 µs outside operators (Python and libraries)" in first.evidence
    assert "aten::index_fill_ 30.0 µs in 1 run, aten::_local_scalar_dense 12.0 µs in 2 runs" in first.evidence
    assert "2 numbers per step read back from tensors" in first.evidence
    assert first.fix == (
        "Read token ids once per step (input_ids.tolist()) in place of 2 single numbers, or keep them from step to "
        "step. Its lines: molprof capture --stacks, then molprof report by source TRACE."
    )


def test_copies_and_syncs_of_the_phase(tmp_path: Path) -> None:
    def per_step(start: int) -> list[Event]:
        copy = "Memcpy HtoD (Pageable -> Device)"
        return [
            *launched("gpu_memcpy", copy, start + 610, start + 612, 4, bytes=100),
            slice_("cuda_runtime", "cudaStreamSynchronize", start + 620, 10),
        ]

    first, *others = found(tmp_path, run_of("generic", per_step=per_step))
    assert "0 launches and 1 host sync per step; 1 copy per step to the GPU, 400 B in all" in first.evidence
    assert (first.id, others[0].id, others[0].part_of) == ("constraint", "processor_syncs", "constraint")


@pytest.mark.parametrize(
    ("processor", "changes", "words"),
    [
        ("generic", {}, "Take --processor vectorized"),
        ("xgrammar", {}, "Take --processor grammar"),
        ("vectorized", {}, "A step looks its masks up already"),
        ("package.module:Mine", {}, "a mask by state, which a step looks up. Its lines: molprof capture --stacks"),
    ],
)
def test_the_fix_of_a_processor(tmp_path: Path, processor: str, changes: dict[str, Any], words: str) -> None:
    assert words in found(tmp_path, run_of(processor, **changes))[0].fix


def test_programs(tmp_path: Path) -> None:
    prefix = {"name": "PrefixConstrainedLogitsProcessor", "own": False}
    first = found(tmp_path, program([prefix], {"prefix_allowed_tokens_fn": "mine.allowed"}))[0]
    assert "trie or table by state that is made once: transformers calls mine.allowed for each row" in first.fix
    assert "by class, per timed step: PrefixConstrainedLogitsProcessor 100 µs" in first.evidence
    first = found(tmp_path, program([{"name": "NoBadWordsLogitsProcessor", "own": False}], {"bad_words_ids": "[[5]]"}))[
        0
    ]
    assert "transformers makes NoBadWordsLogitsProcessor of bad_words_ids" in first.fix
    assert "BatchGrammarMatcher" in found(tmp_path, program([{"name": "xgrammar.LogitsProcessor"}], {}))[0].fix
    assert "molprof run --stacks" in found(tmp_path, program([{"name": "Mine"}], {}))[0].fix
    # Of beams, which no processor keeps to it.
    first = found(tmp_path, program([], {"force_words_ids": "[[5]]"}, processor_ns=0))[0]
    assert first.title == "The constraint (force_words_ids) has no time of its own"
    assert first.gain is None


def test_a_loop_that_marks_its_processor(tmp_path: Path) -> None:
    steps = [
        event
        for step in range(3)
        for start in [1000 * step]
        for event in (
            slice_("user_annotation", f"molprof.forward batch=0 step={step}", start, 700),
            slice_("user_annotation", f"molprof.processor batch=0 step={step}", start + 700, 300),
            op("aten::mm", start, 600), op("aten::add", start + 900, 100),
        )
    ]  # fmt: skip
    first = found(tmp_path, plain(*steps))[0]
    assert (first.id, first.gain_ratio) == ("constraint", pytest.approx(0.3))
    assert "900 µs of the recorded span, 3.00 ms: 30.0 %" in first.evidence


def test_a_capture_of_the_processor(tmp_path: Path) -> None:
    path = tmp_path / "a.json.gz"
    captured(path, settings(processor="generic", stacks=True), inputs(tmp_path))
    report = api.report(path)
    first = next(item for item in report.findings if not item.warning)
    assert first.id == "constraint"
    assert "by function: " in first.evidence
    assert report.run is not None
    phase = report.run.phases["processor"]
    assert first.figures["processor_wall_ns"] == phase.wall_ns
    assert 0 < first.figures["outside_operators_ns"] * report.run.window.steps < (phase.host_ns or 0)
    assert report.run.masked is not None
    assert first.figures["forced_tokens"] == report.run.generated_tokens - report.run.masked.free_choices


@pytest.mark.parametrize("path", sorted(TRACES.glob("*.json.gz")), ids=lambda path: path.name)
def test_every_recorded_run_with_a_processor_begins_with_it(path: Path) -> None:
    if "graphs" in path.name:
        pytest.skip("no run: graphs beside a trace")
    report = api.report(path)
    first = next(item for item in report.findings if not item.warning)
    assert report.run is not None
    assert (first.id == "constraint") == (report.run.setup.processor is not None)


@pytest.mark.skipif(CORPUS is None, reason="MOLPROF_CORPUS names no folder with traces of engines")
def test_an_engine_with_a_grammar() -> None:
    folder = Path(str(CORPUS)) / "engines"
    first, *others = [item for item in api.report(folder / "vllm_json_xgrammar.json.gz").findings if not item.warning]
    assert (first.id, first.location) == ("constraint", "xgrammar/matcher.py(332): fill_next_token_bitmask")
    assert "4 grammars compiled" in first.evidence
    assert "--structured-outputs-config.backend" in first.fix
    assert "to fill one row p50" in first.evidence
    # The rest of the time comes after what is part of it.
    assert [item.id for item in others if item.part_of is None] == ["host_operators"]
    assert "constraint" not in [item.id for item in api.report(folder / "vllm_plain.json.gz").findings]
