"""The answer in words: exact sentences from known figures, and none that the figures do not carry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_trace
from msgspec.structs import replace
from page_data import foreign, report_of, timed, two_runs

from molprof.analysis.compare import compare
from molprof.analysis.documents.comparison import comparison_verdict
from molprof.analysis.documents.report import report_verdict
from molprof.analysis.figures.run_model import Spread


def test_what_most_of_the_difference_is(tmp_path: Path) -> None:
    assert comparison_verdict(two_runs(tmp_path)) == (
        "qwen lp:generic takes 1.34x the time of llama lp:generic: 5.38 s against 4.00 s, +1.38 s, "
        "+31.6 % to +37.5 % (medians of 3 timed passes, unpaired). Most of it is useful tokens (+900 ms), forward: "
        "launch-bound (GPU idle) (+250 ms).",
    )


def test_a_part_that_works_against_the_difference(tmp_path: Path) -> None:
    comparison = two_runs(tmp_path, {"tokens.useful": 1_800_000_000, "forward.gpu": -420_000_000})
    (sentence,) = comparison_verdict(comparison)
    assert sentence.endswith(
        " Most of it is useful tokens (+1.80 s). In the other direction: forward: GPU busy (-420 ms)."
    )


def test_parts_that_cancel_each_other_are_not_most_of_it(tmp_path: Path) -> None:
    parts = {"tokens.useful": 8_000_000_000, "forward.gpu": -7_000_000_000}
    (sentence,) = comparison_verdict(two_runs(tmp_path, parts))
    assert " Largest: useful tokens (+8.00 s). In the other direction: forward: GPU busy (-7.00 s)." in sentence


def test_ids_without_a_group_are_named_as_they_are(tmp_path: Path) -> None:
    (sentence,) = comparison_verdict(two_runs(tmp_path, {"forward": 1_380_000_000}))
    assert sentence.endswith(" Most of it is forward (+1.38 s).")


def test_within_noise(tmp_path: Path) -> None:
    assert comparison_verdict(two_runs(tmp_path, {}, spread_ns=700_000_000)) == (
        "The total times of qwen lp:generic and llama lp:generic do not differ beyond noise: 5.38 s against 4.00 s, "
        "+1.38 s, -0.43 % to +84.2 % (medians of 3 timed passes, unpaired).",
    )


def test_a_part_beyond_noise_in_a_total_within_noise(tmp_path: Path) -> None:
    (sentence,) = comparison_verdict(two_runs(tmp_path, {"processor.gpu": 80_000_000}, spread_ns=700_000_000))
    assert sentence.endswith(" Of its parts these do: processor: GPU busy (+80.0 ms).")


@pytest.mark.parametrize(
    ("repeats", "said"),
    [
        ((1, 1), "(1 timed pass, too few to know the noise, unpaired)"),
        ((3, 1), "(1 and 3 timed passes, too few to know the noise, unpaired)"),
        ((2, 2), "(medians of 2 timed passes, which is few, unpaired)"),
        ((5, 4), "(medians of 4 and 5 timed passes, unpaired)"),
    ],
)
def test_too_few_repeats_are_said(tmp_path: Path, repeats: tuple[int, int], said: str) -> None:
    first = timed(report_of(tmp_path, tiny_trace.document(), "a"), 4_000_000_000, 1_000, repeats[0])
    other = timed(report_of(tmp_path, tiny_trace.document(), "b"), 5_380_000_000, 1_000, repeats[1])
    (sentence,) = comparison_verdict(compare([first, other]))
    assert said in sentence


def test_without_unprofiled_times_no_speed_is_claimed(tmp_path: Path) -> None:
    run = report_of(tmp_path, tiny_trace.document())
    for pair in ([run, foreign(tmp_path)], [foreign(tmp_path), run]):
        (sentence,) = comparison_verdict(compare(pair))
        assert "Which is faster without the profiler is not recorded" in sentence
        assert "x the time" not in sentence


def test_traces_without_unprofiled_times_are_told_by_what_they_recorded(tmp_path: Path) -> None:
    longer = {"traceEvents": [tiny_trace.work("kernel", "gemm", 5, 7, 1), tiny_trace.work("kernel", "gemm", 20, 2, 2)]}
    assert comparison_verdict(compare([foreign(tmp_path), report_of(tmp_path, longer, "longer")])) == (
        "longer: the recorded GPU span, first work to last, is 12.0 µs longer than that of foreign (busy +6.00 µs, "
        "idle +6.00 µs). Which is faster without the profiler is not recorded.",
    )


def test_one_run(tmp_path: Path) -> None:
    report = timed(report_of(tmp_path, tiny_trace.document()), 4_000_000_000, 0)
    # Not recorded: 48 of 82 µs, between the graph's work and the kernel without a call.
    assert report_verdict(report) == (
        "llama lp:generic: 2 molecules, 5 tokens in 4.00 s (median of 3 timed passes), 800 ms per token; "
        "forward takes 91.3 %, prefill takes 2.74 %. 1 of 2 answers stopped at the token limit of 3.",
        "llama lp:generic: the GPU was busy for 45.0 % of 149 µs, "
        "first work to last; 55.6 % of GPU time is matmul; main cause of idle time: call not recorded "
        "(58.5 %).",
    )
    cpu = report_verdict(report_of(tmp_path, tiny_trace.cpu_document(), "cpu"))
    assert len(cpu) == 1
    assert "GPU" not in cpu[0]


def test_another_programs_trace(tmp_path: Path) -> None:
    (sentence,) = report_verdict(foreign(tmp_path))
    assert sentence.startswith("foreign: the GPU was busy for 60.0 % of 5.00 µs, first work to last; ")
    calls = {"traceEvents": [tiny_trace.slice_("cuda_runtime", "cudaLaunchKernel", 1, 2, correlation=1)]}
    (sentence,) = report_verdict(report_of(tmp_path, calls, "calls"))
    assert sentence == "calls recorded 1 launch, 0 kernels, but no GPU work."
    nothing = {"traceEvents": [tiny_trace.slice_("cpu_op", "aten::mm", 1, 2)]}
    assert report_verdict(report_of(tmp_path, nothing, "nothing")) == ("nothing holds no GPU calls and no GPU work.",)


@pytest.mark.parametrize("dur", [{}, {"dur": None}, {"dur": 0}])
def test_gpu_work_without_durations(tmp_path: Path, dur: dict[str, Any]) -> None:
    events = [tiny_trace.slice_("cuda_runtime", "cudaLaunchKernel", 1, 50, correlation=1)]
    kernel = tiny_trace.work("kernel", "flash_fwd", 60, 1, 1)
    del kernel["dur"]
    report = report_of(tmp_path, {"traceEvents": [*events, {**kernel, **dur}]}, "k")
    assert (report.counts.kernels, report.counts.kernel_time_ns) == (1, 0)
    assert all(finding.note for finding in report.findings)
    assert report_verdict(report) == ("k recorded 1 launch, 1 kernel; how long the GPU's work took is not recorded.",)


def test_no_cause_is_named_for_next_to_no_idle_time(tmp_path: Path) -> None:
    def sentence(gap_us: float) -> str:
        kernels = [tiny_trace.work("kernel", "k", 0, 500, 1), tiny_trace.work("kernel", "k", 500 + gap_us, 500, 2)]
        return report_verdict(report_of(tmp_path, {"traceEvents": kernels}, "k"))[0]

    assert "idle time" not in sentence(0.9)
    assert "; main cause of idle time: pauses below 5 µs" in sentence(4)


def test_few_or_far_fewer_valid_molecules_are_said(tmp_path: Path) -> None:
    first = timed(report_of(tmp_path, tiny_trace.document()), 4_000_000_000, 0)
    assert first.run is not None
    runs = [replace(first, run=replace(first.run, molecules=8, valid_molecules=valid)) for valid in (8, 0, 7, 1)]
    (sentence,) = comparison_verdict(compare(runs[:2]))
    assert sentence.endswith(
        " Valid: 0 of 8 molecules of llama lp:generic #2, 8 of 8 molecules of llama lp:generic #1."
    )
    (sentence,) = comparison_verdict(compare([runs[0], runs[2]]))
    assert "Valid" not in sentence
    (sentence,) = comparison_verdict(compare([runs[1], runs[3]]))
    assert sentence.endswith(
        " Valid: 1 of 8 molecules of llama lp:generic #2, 0 of 8 molecules of llama lp:generic #1."
    )


def test_a_run_without_repeats(tmp_path: Path) -> None:
    report = report_of(tmp_path, tiny_trace.document())
    assert report.run is not None
    bare = replace(report, run=replace(report.run, wall_ns=Spread(None, None, None, 0)))
    assert report_verdict(bare)[0] == (
        "llama lp:generic: 2 molecules, 5 tokens; no unprofiled times are recorded. "
        "1 of 2 answers stopped at the token limit of 3."
    )


def test_one_file_twice_is_said(tmp_path: Path) -> None:
    first, same = report_of(tmp_path, tiny_trace.document(), "a"), report_of(tmp_path, tiny_trace.document(), "a")
    comparison = compare([first, same])
    said = "llama lp:generic #2 and llama lp:generic #1 are one file, or copies of one"
    assert comparison_verdict(comparison) == (f"{said}: {tmp_path}/a.json.",)
    assert any("are one file" in note for note in comparison.notes)
    replaced = report_of(tmp_path, tiny_trace.cpu_document(), "a")
    assert "one file" not in comparison_verdict(compare([first, replaced]))[0]
