"""Comparisons: which runs are comparable, refusals, notes, rows and verdict; stored reports in place of traces."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_trace
from msgspec.structs import replace
from page_data import foreign, render, report_of, timed, two_runs
from synthetic import Spec, captured

from molprof import api
from molprof.analysis.compare import compare
from molprof.analysis.compare.difference import known_parts
from molprof.analysis.compare.statistics import significant
from molprof.analysis.documents.comparison import comparison_document, comparison_verdict
from molprof.analysis.documents.report import report_verdict
from molprof.analysis.figures import Report
from molprof.analysis.figures.run_model import PassTimes
from molprof.analysis.render import render as render_document
from molprof.analysis.reports import read_stored
from molprof.common.errors import NotComparableError, TraceError, UsageError

TRACES = Path(__file__).parent.parent / "traces"
NS = {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9}
TIMES = re.compile(r"([\d.]+) (\w+) against ([\d.]+) (\w+), ([+-][\d.]+) (\w+)")
Change = Callable[[dict[str, Any]], Any]


def changed(tmp_path: Path, change: Change = lambda manifest: None, name: str = "other") -> Report:
    """The tiny run with another manifest."""
    content = tiny_trace.document()
    change(content["molprof"])
    return report_of(tmp_path, content, name)


def sampled(**parameters: float) -> Change:
    return lambda run: run["generation"].update(sampling="sample", sampling_parameters=parameters)


@pytest.fixture
def report(tmp_path: Path) -> Report:
    return changed(tmp_path, name="trace")


@pytest.mark.parametrize(
    ("first", "other", "problem"),
    [
        (None, lambda run: run["molecules"][0].update(smiles="CC"), "other molecules, as CC instead of C (1 of 2)"),
        (None, lambda run: run["molecules"][0].update(sequence=9), "other molecules, as nothing instead of C (1 of 2)"),
        (None, lambda run: run["molecules"].pop(), "molecules (1, not 2)"),
        (None, sampled(temperature=0.5, top_p=0.9), "sampling (sample, not greedy)"),
        (sampled(temperature=1.0, top_p=0.9), sampled(temperature=0.5, top_p=0.9),
         "sampling parameters (temperature 0.5, top_p 0.9, not temperature 1.0, top_p 0.9)"),
    ],
)  # fmt: skip
def test_other_work_is_refused_unless_anyway(tmp_path: Path, first: Change | None, other: Change, problem: str) -> None:
    runs = [changed(tmp_path, first or (lambda run: None)), changed(tmp_path, other)]
    line = f"llama lp:generic #2 and llama lp:generic #1 are not comparable: {problem}"
    with pytest.raises(NotComparableError) as caught:
        compare(runs)
    assert (str(caught.value), caught.value.exit_code) == (line, 3)
    assert "--anyway" in str(caught.value.hint)
    assert line in compare(runs, anyway=True).notes


def test_experiments_are_compared_and_said(tmp_path: Path, report: Report) -> None:
    other = changed(
        tmp_path, lambda run: run["generation"].update(batch_size=1, cache="static", max_new_tokens=9, seed=7)
    )
    assert compare([report, other]).notes[0] == (
        "llama lp:generic static cache batch 1 differs from llama lp:generic dynamic cache batch 2 in KV cache "
        "(static, not dynamic); batch size (1, not 2); max_new_tokens (9, not 3)"
    )
    seeds = [changed(tmp_path, lambda run, n=n: run["generation"].update(sampling="sample", seed=n)) for n in (0, 1)]  # type: ignore[misc]
    assert any("seed (1, not 0)" in line for line in compare(seeds).notes)
    assert "1 of 2 molecules of llama lp:generic #1 stopped at the token limit" in compare([report, report]).notes[0]
    with pytest.raises(UsageError, match="at least two traces, got 1"):
        compare([report])


def test_a_foreign_trace_is_compared_as_far_as_it_goes(tmp_path: Path, report: Report) -> None:
    theirs = foreign(tmp_path)
    comparison = compare([theirs, report])
    assert any(line.startswith("not captured by molprof: foreign. ") for line in comparison.notes)
    rows = {row.figure.id: row for row in comparison.rows}
    assert (rows["kernels"].values, rows["kernels"].ratios[1], rows["kernels"].significant) == ((2, 6), 3, (None, True))
    assert (rows["wall_ns"].values, rows["wall_ns"].significant) == ((None, 1095), (None, None))
    assert not any("not captured" in line for line in compare([theirs, theirs]).notes)
    shown = " ".join(render(compare([theirs, theirs])).split())
    assert "not recorded: Unprofiled time; Tokens; Launches" in shown
    assert "not recorded: Settings of the run; Trace (devices in the trace)" in shown
    assert "molecule" not in shown
    # More than two, each against the first.
    several = compare([report, two_runs(tmp_path).runs[1], theirs, report])
    assert several.labels == ("llama lp:generic #1", "qwen lp:generic", "foreign", "llama lp:generic #2")
    walls = [item and item["wall_ns"] for item in several.to_json()["difference"]]
    assert walls == [5_380_000_000 - 1095, None, 0]


def test_launches_of_steps_that_the_engine_marked(tmp_path: Path) -> None:
    mark = "execute_context_0(0)_generation_4(4)"
    events = [tiny_trace.slice_("user_annotation", mark, ts, 50) for ts in (0, 100)]
    for index, ts in enumerate((1, 5, 101)):
        events.append(tiny_trace.slice_("cuda_runtime", "cudaLaunchKernel", ts, 2, correlation=index))
        events.append(tiny_trace.work("kernel", "k", ts + 10, 2, index))
    marked = report_of(tmp_path, {"traceEvents": events}, "marked")
    rows = {row.figure.id: row for row in compare([marked, foreign(tmp_path)]).rows}
    assert (rows["launches_per_step"].values, rows["launches_per_token"].values) == ((1.5, None), (0.375, None))


def test_noise_and_counts(tmp_path: Path, report: Report) -> None:
    def slower(run: dict[str, Any]) -> None:
        for repeat, more in zip(run["timings"]["repeats"], (300, 400, 500), strict=True):
            repeat["wall_ns"] += more
            repeat["phases_ns"]["forward"] += more
            repeat["phases_ns"]["sampling"] += (more - 400) // 20

    comparison = compare([report, changed(tmp_path, slower)])
    rows = {row.figure.id: row for row in comparison.rows}
    interval = rows["wall_ns"].ratio_intervals[1]
    assert interval is not None
    assert (interval.low, interval.high) == (1395 / 1195, 1595 / 995)
    assert interval.level == pytest.approx(0.9)
    names = ("wall_ns", "sampling_ns", "prefill_ns", "launches", "busy_ratio")
    assert [rows[name].significant[1] for name in names] == [True, False, False, False, None]
    assert {rows[name].figure.noise for name in ("busy_ratio", "gpu_ns_per_step", "kernel_time_ns")} == {"once"}
    shown = [" ".join(line.split()) for line in render(comparison).splitlines()]
    for line in ("total time (median) 1.09 µs 1.50 µs 1.37x", "prefill time per batch 30 ns 30 ns ~",
                 "decode steps 2 2 1.00x"):  # fmt: skip
        assert line in shown
    assert any(line.startswith("3 timed passes: intervals of ratios reach 90 %, not 95 %") for line in comparison.notes)

    comparison = compare([report, changed(tmp_path, lambda run: run["timings"]["repeats"].__delitem__(slice(1, None)))])
    (line,) = (line for line in comparison.notes if "too few timed passes to tell" in line)
    assert "llama lp:generic #2 (1)" in line
    assert {row.significant[1] for row in comparison.rows if row.figure.noise == "repeats"} == {None}
    assert "~ " not in render(comparison).split("How sure")[0]


@pytest.mark.parametrize(
    ("names", "paired"), [("cpu-llama cpu-qwen cpu-llama-generic", True), ("cpu-qwen cpu-qwen-jump", False)]
)
def test_every_number_follows_from_the_others(names: str, paired: bool) -> None:
    """Of rounds of one capture, and of runs that are not paired."""
    comparison = api.compare(*(TRACES / f"{name}.json.gz" for name in names.split()))
    assert {item and item.paired for item in comparison.differences} == {paired}
    for row in comparison.rows:
        numbers = [row.numbers(place)[0] for place in range(len(row.values))]
        for number, ratio in zip(numbers, row.ratios, strict=True):
            assert ratio is None or number is None or not numbers[0] or ratio == pytest.approx(number / numbers[0])
    sections = comparison_document(comparison).screen
    (bars,) = (section.table for section in sections if section.title.startswith("Difference in "))
    assert bars is not None
    for place, item in enumerate(comparison.differences, 1):
        here, first = comparison.wall.numbers(place)
        assert item is not None
        assert here is not None
        assert first is not None
        assert item.wall_ns == sum(item.parts.values()) + item.residual_ns == here - first
        assert set(item.causes) <= set(known_parts(item))
        if item.paired:
            assert comparison.wall.significant[place] is significant(item.wall_interval, 0.0)
        *shown, total = (row[place] for row in bars.rows)
        assert sum(ns or 0 for ns in shown) == total == item.wall_ns  # type: ignore[misc]
        # One paragraph for several runs tells ratios and changes alone.
        if said := TIMES.search(comparison_verdict(comparison)[0]):
            told = [float(said[number]) * NS[said[number + 1]] for number in (1, 3, 5)]
            assert told == pytest.approx([here, first, here - first], rel=0.005)


LIMIT = (
    " 1 of 2 answers of qwen lp:generic and 1 of 2 answers of llama lp:generic stopped at the token limit of 3 "
    "(5 against 5 tokens): times are not of whole answers."
)
SAID = (
    "qwen lp:generic takes 1.34x the time of llama lp:generic: 5.38 s against 4.00 s, +1.38 s, "
    "+31.6 % to +37.5 % (medians of 3 timed passes, unpaired)."
)
NOISE = (
    "The total times of qwen lp:generic and llama lp:generic do not differ beyond noise: 5.38 s against 4.00 s, "
    "+1.38 s, -0.43 % to +84.2 % (medians of 3 timed passes, unpaired)."
)


@pytest.mark.parametrize(
    ("parts_ms", "spread_ms", "sentence"),
    [
        (None, 50, f"{SAID} Most of it is useful tokens (+900 ms), forward: launch-bound (GPU idle) (+250 ms)."),
        ({"tokens.useful": 1_800, "forward.gpu": -420}, 50,
         f"{SAID} Largest: useful tokens (+1.80 s). In the other direction: forward: GPU busy (-420 ms)."),
        # Parts that cancel each other are not most of it.
        ({"tokens.useful": 8_000, "forward.gpu": -7_000}, 50,
         f"{SAID} Largest: useful tokens (+8.00 s). In the other direction: forward: GPU busy (-7.00 s)."),
        ({"forward": 1_380}, 50, f"{SAID} Most of it is forward (+1.38 s)."),
        ({}, 700, NOISE),
        ({"processor.gpu": 80}, 700, f"{NOISE} Of its parts these do: processor: GPU busy (+80.0 ms)."),
    ],
)  # fmt: skip
def test_the_verdict(tmp_path: Path, parts_ms: dict[str, int] | None, spread_ms: int, sentence: str) -> None:
    parts = None if parts_ms is None else {part: 1_000_000 * ms for part, ms in parts_ms.items()}
    assert comparison_verdict(two_runs(tmp_path, parts, 1_000_000 * spread_ms)) == (sentence + LIMIT,)


@pytest.mark.parametrize(
    ("repeats", "said"),
    [
        ((1, 1), "(1 timed pass, too few to know the noise, unpaired)"),
        ((3, 1), "(1 and 3 timed passes, too few to know the noise, unpaired)"),
        ((2, 2), "(medians of 2 timed passes, which is few, unpaired)"),
        ((5, 4), "(medians of 4 and 5 timed passes, unpaired)"),
    ],
)
def test_the_verdict_says_what_it_rests_on(tmp_path: Path, repeats: tuple[int, int], said: str) -> None:
    runs = [
        timed(report_of(tmp_path, tiny_trace.document(), name), median, 1_000, count)
        for name, median, count in zip("ab", (4_000_000_000, 5_380_000_000), repeats, strict=True)
    ]
    (sentence,) = comparison_verdict(compare(runs))
    assert said in sentence
    # Few or far fewer valid molecules.
    assert runs[0].run is not None
    for valid, words in (((8, 0), " Valid: 0 of 8 molecules of llama lp:generic #2, 8 of 8 molecules of"),
                         ((0, 1), " Valid: 1 of 8 molecules of llama lp:generic #2, 0 of 8 molecules of"),
                         ((8, 7), "")):  # fmt: skip
        few = [replace(runs[0], run=replace(runs[0].run, molecules=8, valid_molecules=count)) for count in valid]
        (sentence,) = comparison_verdict(compare(few))
        assert words in sentence
        assert ("Valid" in sentence) is bool(words)


def test_without_unprofiled_times_no_speed_is_claimed(tmp_path: Path, report: Report) -> None:
    theirs = foreign(tmp_path)
    for pair in ([report, theirs], [theirs, report]):
        (sentence,) = comparison_verdict(compare(pair))
        assert "Which is faster without the profiler is not recorded" in sentence
        assert "x the time" not in sentence
    longer = {"traceEvents": [tiny_trace.work("kernel", "gemm", 5, 7, 1), tiny_trace.work("kernel", "gemm", 20, 2, 2)]}
    assert comparison_verdict(compare([theirs, report_of(tmp_path, longer, "longer")])) == (
        "longer: the recorded GPU span, first work to last, is 12.0 µs longer than that of foreign (busy +6.00 µs, "
        "idle +6.00 µs). Which is faster without the profiler is not recorded.",
    )


def test_one_file_twice_and_other_surroundings_are_said(tmp_path: Path) -> None:
    first, same = report_of(tmp_path, tiny_trace.document(), "a"), report_of(tmp_path, tiny_trace.document(), "a")
    comparison = compare([first, same])
    said = "llama lp:generic #2 and llama lp:generic #1 are one file, or copies of one"
    assert comparison_verdict(comparison) == (f"{said}: {tmp_path}/a.json.",)
    assert any("are one file" in note for note in comparison.notes)
    assert (
        "one file" not in comparison_verdict(compare([first, report_of(tmp_path, tiny_trace.cpu_document(), "a")]))[0]
    )

    def trace(device: str, **versions: object) -> Report:
        step = tiny_trace.slice_("user_annotation", "ProfilerStep#1", 0, 50 + len(device))
        events = [step, tiny_trace.work("kernel", "gemm", 5, len(device), 1)]
        keys = {"deviceProperties": [{"id": 0, "name": device}], **versions}
        return report_of(tmp_path, {**keys, "traceEvents": events}, device)

    packages = {"system": {"pip_packages": ["torch==2.8.0", "six==1"]}}
    before = trace("V100", cuda_runtime_version=12040, engine_version="1.0")
    after = trace("MI300X", hip_runtime_version=60443483, engine_version="1.0", metadata=packages)
    comparison = compare([before, after])
    (said,) = comparison_verdict(comparison)
    assert said.startswith(
        "MI300X takes 1.04x the time of V100 for a step with its GPU work: 56.0 µs against 54.0 µs, +2.00 µs ("
    )
    assert said.endswith(" Not the program alone differs: device (MI300X, not V100), and platform.")
    shown = render_document(comparison_document(comparison), whole=False)
    assert "device V100 -> MI300X platform CUDA 12.4 -> HIP 6.4.43483" in " ".join(shown.split())
    assert comparison.runs[1].trace.software == {"HIP": "6.4.43483", "engine": "1.0", "torch": "2.8.0"}


KERNEL = {name: value for name, value in tiny_trace.work("kernel", "flash_fwd", 60, 1, 1).items() if name != "dur"}
LAUNCH = tiny_trace.slice_("cuda_runtime", "cudaLaunchKernel", 1, 50, correlation=1)


@pytest.mark.parametrize(
    ("events", "sentence"),
    [
        ([LAUNCH], "k recorded 1 launch, but no GPU work."),
        ([tiny_trace.slice_("cpu_op", "aten::mm", 1, 2)],
         "k: a CPU-only trace; 1 operator took 2.00 µs, all threads together, aten::mm 100 % of it. 2.00 µs are"
         " recorded."),
        *(([LAUNCH, {**KERNEL, **dur}],
           "k recorded 1 launch, 1 kernel; how long the GPU's work took is not recorded.")
          for dur in ({}, {"dur": None}, {"dur": 0})),
        *(([tiny_trace.work("kernel", "k", 0, 500, 1), tiny_trace.work("kernel", "k", 500 + gap_us, 500, 2)],
           f"k: GPU-bound; the GPU was busy for {busy} of 1.00 ms, first work to last.")
          for gap_us, busy in ((0.9, "99.9 %"), (4, "99.6 %"))),
    ],
)  # fmt: skip
def test_the_verdict_of_another_programs_trace(tmp_path: Path, events: list[Any], sentence: str) -> None:
    report = report_of(tmp_path, {"traceEvents": events}, "k")
    assert report_verdict(report)[0] == sentence
    if "took is not recorded" in sentence:
        assert (report.counts.kernels, report.counts.kernel_time_ns) == (1, 0)
        assert all(finding.note for finding in report.findings)


def test_the_verdict_of_a_run_without_repeats(report: Report) -> None:
    assert report.run is not None
    bare = replace(report, run=replace(report.run, wall_ns=PassTimes(None, None, None, 0)))
    assert report_verdict(bare)[0] == (
        "llama lp:generic: 2 molecules, 5 tokens; no unprofiled times are recorded. "
        "1 of 2 answers stopped at the token limit of 3."
    )


def test_a_stored_report_stands_for_its_trace(tmp_path: Path, report: Report) -> None:
    text = render(report, "json")
    path = tmp_path / "baseline.json"
    # Packed or not, and with keys in another order.
    for data in (text.encode(), gzip.compress(text.encode()), json.dumps(json.loads(text), sort_keys=True).encode()):
        path.write_bytes(data)
        stored = read_stored(path)
        assert stored is not None
        assert stored.to_json() == report.to_json()
        assert compare([stored, report]).to_json() == compare([report, report]).to_json()
    trace = tmp_path / "trace.json"
    assert api.reports([path, trace, path]) == [stored, report, stored]
    # Without a table, and with one of a newer molprof.
    content = json.loads(text)
    del content["tables"]["steps"], content["tables"]["idle_causes"]
    content["tables"]["of_a_newer_molprof"] = [{"calls": 3, "time_ns": 5}]
    content["of_a_newer_molprof"] = {"more": 1}
    path.write_text(json.dumps(content))
    stored = read_stored(path)
    assert stored is not None
    assert stored.table("steps").rows == stored.table("idle_causes").rows == ()
    assert stored.table("of_a_newer_molprof").rows == ((3, 5),)
    for style in ("table", "markdown", "csv", "json", "html"):
        assert render(compare([stored, report]), style)
    # A foreign one without its steps lacks what is read from them.
    content = foreign(tmp_path).to_json()
    del content["tables"]["steps"]
    path.write_text(json.dumps(content))
    stored = read_stored(path)
    assert stored is not None
    rows = {row.figure.id: row.values for row in compare([stored, stored]).rows}
    assert rows["launches_per_step"] == rows["launches_per_token"] == (None, None)
    assert rows["kernels"] == (2, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 99}, "is a report of schema 99"),
        ({"counts": {"launches": 3}}, "Object missing required field"),
        *(({"tables": tables}, message) for tables, message in (
            (5, "Expected `object`, got `int`"),
            ({"steps": [5]}, "Expected `object`, got `int`"),
            ({"drift": [{"drift": 1}]}, "table drift lacks junk_and_filler_tokens in a row"),
            ({"of_a_newer_molprof": [{"a": 1, "b": 2}, {"a": 1}]}, "table of_a_newer_molprof lacks b in a row"),
            ({"host_syncs": [{"time_ns": "long"}]}, "table host_syncs has text in place of a number: time_ns"),
        )),
    ],
)  # fmt: skip
def test_a_stored_report_that_is_not_whole(tmp_path: Path, report: Report, change: Any, message: str) -> None:
    path = tmp_path / "baseline.json"
    path.write_text(json.dumps({**report.to_json(), **change}))
    with pytest.raises(TraceError, match=message) as caught:
        read_stored(path)
    assert "schema" in message or "is not a whole report of this molprof: " in str(caught.value)
    # Other files are no stored reports.
    for content in (b"", b"{}", b"[]", b"no json", b'{"schema": 1, "runs": []}', b'{"trace": {}}', b"\xff\xff"):
        path.write_bytes(content)
        assert read_stored(path) is None
    assert read_stored(tmp_path / "absent.json") is None
    assert read_stored(tmp_path / "trace.json") is None


def at_limit(folder: Path, name: str, rows: tuple[str, ...], **changes: Any) -> Report:
    content = captured(Spec((rows,)))
    content["molprof"]["model"].update(changes)
    return report_of(folder, content, name)


def test_answers_that_the_limit_ended_lead_with_the_time_per_token(tmp_path: Path) -> None:
    """A baseline that never ends wrote more: its total time is that of the limit, not of the processor."""
    endless, whole = at_limit(tmp_path, "endless", ("ffffffffff",) * 2), at_limit(tmp_path, "whole", ("ffe", "ffe"))
    (said,) = comparison_verdict(compare([endless, whole]))
    assert said.startswith(
        "llama lp:generic #2 takes 1.19x the time of llama lp:generic #1 per token: 1.30 ms against 1.09 ms. "
        "2 of 2 answers of llama lp:generic #1 stopped at the token limit of 3 (6 against 20 tokens): totals depend on "
        "the limit. In all 7.82 ms against 21.9 ms, -14.1 ms (1 timed pass, too few to know the noise, unpaired). "
        "Most of it is useful tokens"
    )
    # Equal tokens, other tokenizers and few such answers: the total leads, and the limit is told.
    again = at_limit(tmp_path, "again", ("ffffffffff",) * 2, family="other")
    (said,) = comparison_verdict(compare([endless, again]))
    assert "(20 against 20 tokens): times are not of whole answers." in said
    other = at_limit(tmp_path, "other", ("ffe", "ffe"), tokenizer="mine")
    few = at_limit(tmp_path, "few", (*("fe",) * 19, "fff"))
    for runs in ([again, other], [at_limit(tmp_path, "all", ("fe",) * 20), few]):
        (said,) = comparison_verdict(compare(runs))
        assert " per token: " not in said.partition("stopped")[0]
        assert said.endswith("times are not of whole answers.")
    (said,) = comparison_verdict(compare([whole, other]))
    assert "limit" not in said
