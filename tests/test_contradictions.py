"""Figures of one quantity in several places are equal, or each says which one it is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from bench_data import ran, result, run_of, write
from captures import events, of
from goldens import called
from tiny_trace import memory_event, slice_, work
from tiny_trace import write as write_trace
from transformers import LlamaConfig, LlamaForCausalLM, LogitsProcessor

import molprof
from molprof import api
from molprof.analysis.bench.recommend import recommend
from molprof.analysis.compare import compare
from molprof.analysis.documents.figures import figure_values, reports_of
from molprof.analysis.documents.report import report_sections
from molprof.analysis.figures import Report
from molprof.analysis.predict.predict import PredictedFigure, device_of, possible
from molprof.common.bench_records import read_results
from molprof.common.manifest import MachineSpan
from molprof.common.process import FAILED, NO_MEMORY, NOT_MEASURED
from molprof.common.process.guarded import Limits, call, killed_by_kernel
from molprof.common.values import time_text
from molprof.profiler.machine import Watch

TRACES = Path(__file__).parents[1] / "traces"
GB = 10**9
SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
# Of torch 2.11, where another program has the memory, and where the call has it.
FULL = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.50 GiB is free."
    " Process 4711 has {others} GiB memory in use. Including non-PyTorch memory, this process has {own} GiB memory in"
    " use. Of the allocated memory 3.00 GiB is allocated by PyTorch."
)


class Ban(LogitsProcessor):
    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores + 1


class Keep(LogitsProcessor):
    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores.clone()


def other_gpu_program() -> None:
    raise RuntimeError(FULL.format(others="71.00", own="6.00"))


def own_gpu_memory() -> None:
    raise RuntimeError(FULL.format(others="0.01", own="77.60"))


def report_of(path: Path, *options: str) -> str:
    own, more = (options[:2], options[2:]) if options[:1] == ("by",) else ((), options)
    code, out, err = called(["report", *own, str(path), *more], path.parent)
    assert code == 0, err
    return out


def json_of(*arguments: str | Path) -> Any:
    code, out, err = called([*map(str, arguments), "--format", "json"], Path.cwd())
    assert code == 0, err
    return json.loads(out)


@pytest.fixture(scope="module")
def reports() -> tuple[Report, Report]:
    """Of a run without a processor, and of one with it."""
    return api.report(TRACES / "h100-llama.json.gz"), api.report(TRACES / "h100-llama-generic.json.gz")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three calls of generate with two processors, the second recorded with stacks, on a machine that others use."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, eos_token_id=2, pad_token_id=0, **SIZES)).eval()
    path = tmp_path_factory.mktemp("recorded") / "run.json.gz"
    with pytest.MonkeyPatch.context() as patch, molprof.record(path, window="auto", stacks=True):
        patch.setattr(Watch, "end", lambda self: MachineSpan(1, other_cores=1.0))
        for _ in range(3):
            given: dict[str, Any] = {"max_new_tokens": 30, "min_new_tokens": 30, "logits_processor": [Ban(), Keep()]}
            model.generate(torch.tensor([[3, 11]]), **given)
        patch.setattr(Watch, "end", lambda self: MachineSpan(1, gpu_others=2))
    return path


def test_times_of_passes_say_which_pass_they_are_of() -> None:
    plain, constrained = TRACES / "cpu-llama.json.gz", TRACES / "cpu-llama-generic.json.gz"
    compared = json_of("compare", plain, constrained)
    estimates = {row["id"]: row["estimate"] for row in compared["rows"]}
    assert (estimates["wall_ns"], estimates["processor_ns"]) == ("mean of the rounds", "mean of the rounds")
    assert estimates["leaf_operators_per_step"] is None
    alone = "of the timed pass of median total time; a comparison with runs of the same capture has means"
    assert alone in " ".join(report_of(constrained, "--all").split())
    code, out, _ = called(["compare", str(plain), str(constrained), "--all"], TRACES)
    several = "of each the mean of the rounds, where its report has the timed pass of median total time"
    assert (code, several in " ".join(out.split())) == (0, True)


def test_a_run_without_a_processor_has_no_time_of_one(reports: tuple[Report, Report]) -> None:
    plain, constrained = reports
    figures = figure_values(plain)
    assert (figures["processor_ns"], figures["masking_gpu_ns"], figures["masking_launches"]) == (None, None, 0)
    (row,) = (row for row in compare(reports).rows if row.figure.id == "processor_ns")
    assert (row.ratios, row.values[0]) == ((None, None), None)
    assert plain.bottleneck is not None
    assert constrained.bottleneck is not None
    assert (plain.bottleneck.parts["constraint"], constrained.bottleneck.parts["constraint"] > 0) == (0, True)
    (phases,) = (part for part in report_sections(reports_of(plain)) if part.title == "Phases")
    assert "no logits processor ran: the phase processor holds molprof's marks and empty calls alone" in phases.notes


def test_no_finding_gains_more_of_a_processor_than_it_takes(reports: tuple[Report, Report]) -> None:
    # The GPU is idle for 94 % of the steps, so that nothing waits for the masks' GPU time.
    report = reports[1]
    assert report.run is not None
    assert report.run.wall_ns.median is not None
    share = (report.run.phases["processor"].wall_ns or 0) / report.run.wall_ns.median
    gains = {found.id: found.gain_ratio for found in report.findings}
    assert gains["constraint"] == pytest.approx(share, rel=1e-3)
    assert 0 < (gains["row_masking"] or 0) < share


def test_waits_for_launches_tell_what_of_them_is_in_processors(reports: tuple[Report, Report]) -> None:
    (found,) = (item for item in reports[1].findings if item.id == "launch_bound")
    assert reports[1].bottleneck is not None
    moved = time_text(reports[1].bottleneck.parts["constraint"])
    assert f"; {moved} of it while logits processors run" in found.evidence


def test_transformers_inspects_no_mark_of_molprof(recorded: Path) -> None:
    _, trace = events(recorded)
    phases = [event for event in of(trace, "user_annotation") if event["name"].startswith("molprof.processor ")]
    assert len(phases) == 20
    calls = [event for event in of(trace, "python_function") if event["name"].startswith("inspect.py(")]
    signatures = [event["ts"] for event in calls if event["name"].endswith(": signature")]
    inside = [ts for ts in signatures for one in phases if one["ts"] <= ts < one["ts"] + one["dur"]]
    # Two of the program's, and min_new_tokens makes two.
    assert len(inside) == 20 * 4


def test_molprofs_own_frames_are_in_no_table(recorded: Path) -> None:
    for by in ("source", "module", "operator"):
        text = report_of(recorded, "by", by, "--format", "json")
        assert "recording/" not in text
    assert "in molprof's own marks" in report_of(recorded, "by", "source")
    told = report_of(recorded, "--all")
    assert "recording/" not in told
    (table,) = (part for part in told.split("\n\n") if part.startswith("Logits processors by file and line"))
    assert [line.split()[1] for line in table.splitlines()[3:]] == ["20"] * 4


def test_phases_are_without_molprofs_marks_wherever_they_are_told(recorded: Path) -> None:
    tree, run = json_of("report", "by", "source", recorded)["tree"], api.report(recorded).run
    assert run is not None
    times = {name: run.phases[name].host_ns or 0 for name in ("forward", "processor", "sampling", "bookkeeping")}
    sums = {node["name"]: node["inclusive"] for node in tree["children"]}
    told = {name: item["python_ns"] + item["operator_ns"] for name, item in sums.items()}
    # The trees leave out the own time of functions that call the program's, too: some microseconds of a step.
    assert times == pytest.approx({name: told[name] for name in times}, rel=0.2, abs=25_000 * run.steps)


def test_the_phase_of_processors_says_what_of_it_is_in_no_class(recorded: Path) -> None:
    run = api.report(recorded).run
    assert run is not None
    step = time_text((run.phases["processor"].wall_ns or 0) / run.steps)
    told = " ".join(report_of(recorded, "--all").split())
    assert f"the phase processor takes {step} per step: in no class are the loop over all of them and molprof's" in told
    assert f"processor time per step {step}" in told


def test_times_that_are_not_reliable_are_not_exact(recorded: Path) -> None:
    for options in ((), ("--all",)):
        told = " ".join(report_of(recorded, *options).split())
        assert "WARNING: times are not reliable" in told
        assert "every recorded figure is exact but for the unprofiled times, which are not reliable" in told


def test_runs_of_an_operator_stand_beside_the_leaf_operators_in_it() -> None:
    tree = json_of("report", "by", "operator", TRACES / "cpu-qwen-generic.json.gz")
    left, found = [tree["tree"]], []
    while left:
        node = left.pop()
        left += node["children"]
        found += [node] if node["name"] == "aten::mm" else []
    assert sum(node["own"]["runs"] for node in found) == 580
    assert sum(node["inclusive"]["operators"] for node in found) == 1160
    assert sum(node["inclusive"]["runs"] for node in found) == 580 + 1160  # two of resolve_conj in each


def test_memory_of_a_host_is_what_the_recording_saw(tmp_path: Path) -> None:
    seen = [memory_event(1000, 1, 1, 1000), memory_event(-1000, 2, 1, 0), slice_("cpu_op", "aten::mm", 0, 3)]
    for event in seen[:2]:
        event["args"] |= {"Device Type": 0, "Device Id": -1}
    told = report_of(write_trace(tmp_path / "a.json", {"traceEvents": seen}), "by", "memory")
    assert "Of what the recording saw allocated on the host, at most 1.00 kB lived" in told
    assert "What was there before, as weights are, is not counted." in " ".join(told.split())


def test_kernels_of_a_graph_are_as_close_as_in_recorded_graphs(tmp_path: Path) -> None:
    # Kernels of 2 us, launched 20 us apart; each starts 5 or 8 us after its launch. The last two are 1 us apart.
    starts = [20, 40, 60, 80, 100, 110, 111]
    events = [slice_("cuda_runtime", "cudaLaunchKernel", ts, 1, correlation=n) for n, ts in enumerate(starts, 1)]
    events += [work("kernel", "gemm", ts, 2, n) for n, ts in enumerate((28, 45, 68, 85, 108, 116, 119), 1)]
    events.append(slice_("cuda_runtime", "cudaDeviceSynchronize", 113, 12))
    path = write_trace(tmp_path / "a.json", {"traceEvents": events})
    found, _ = api.critical_path(path, changes=["launches=graph"])
    assert found.changed is not None
    pieces = {piece.what: ns for piece, ns in found.changed.path.items()}
    assert (pieces["matmul"], pieces["between GPU work"]) == (14_000, 6 * 500)


def test_predicted_ranges_agree() -> None:
    length, gpu, busy = possible(
        PredictedFigure(100, 60, 150), PredictedFigure(90, 80, 170), PredictedFigure(0.9, 0.1, 1.0)
    )
    assert (length, gpu) == (PredictedFigure(100, 80, 150), PredictedFigure(90, 80, 150))
    assert busy == PredictedFigure(0.9, 80 / 150, 1.0)
    length, gpu, busy = possible(
        PredictedFigure(200, 160, 250), PredictedFigure(10, 8, 12), PredictedFigure(0.05, 0.001, 0.1)
    )
    assert (length, gpu, busy) == (
        PredictedFigure(200, 160, 250),
        PredictedFigure(10, 8, 12),
        PredictedFigure(0.05, 8 / 250, 12 / 160),
    )


def test_what_can_be_predicted_is_listed() -> None:
    listed = json_of("predict", "--list")
    known = {row["device"]: row for row in listed["devices"]}
    assert (known["h100"]["models"] > 2, known["a100"]["models"]) == (True, 0)
    assert "length_ns" in listed["figures"]
    for name, row in known.items():
        assert device_of(name).source == row["source"]
    for arguments, said in (
        (["predict"], "Missing argument 'TRACE'"),
        (["predict", "x.json"], "Missing option '--device'"),
        (["predict", "x.json", "--list"], "--list takes neither TRACE nor --device"),
    ):
        code, _, err = called(arguments, TRACES)
        assert (code, said in err) == (2, True)


def test_a_prediction_ends_with_its_answer(tmp_path: Path) -> None:
    shape = {"Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"], "Input Strides": [[64, 1], [64, 1]]}
    path = write_trace(tmp_path / "a.json", {"traceEvents": [slice_("cpu_op", "aten::mm", 0, 40, **shape)]})
    code, out, err = called(["predict", str(path), "--device", "h100"], tmp_path)
    assert code == 0, err
    assert out.splitlines()[-1].split()[:2] == ["GPU", "busy"]
    assert "Held-out" not in out
    assert "Held-out predictions" in called(["predict", str(path), "--device", "h100", "--all"], tmp_path)[1]


def test_by_shape_without_shapes_is_a_line(tmp_path: Path) -> None:
    events = [
        slice_("cpu_op", "aten::mm", 0, 9),
        slice_("cuda_runtime", "cudaLaunchKernel", 2, 1, correlation=1),
        work("kernel", "gemm", 5, 20, 1),
    ]
    path = write_trace(tmp_path / "a.json", {"traceEvents": events})
    told = report_of(path, "by", "shape").splitlines()[3:]
    assert " ".join(" ".join(told).split()).startswith("No shapes are recorded: molprof capture --shapes and")
    assert len(told) == 2
    assert json_of("report", "by", "shape", path)["operators"][0]["calls"] == 1


@pytest.mark.parametrize(
    ("peak", "free", "state"),
    [(2 * GB, 30 * GB, NOT_MEASURED), (28 * GB, 30 * GB, NO_MEMORY), (0, 30 * GB, NO_MEMORY), (GB, None, NO_MEMORY)],
)
def test_a_case_whose_memory_others_took_is_not_measured(peak: int, free: int | None, state: str) -> None:
    ending = killed_by_kernel(peak, free)
    assert ending.state == state
    assert ("other programs took the rest" in (ending.message or "")) is (state == NOT_MEASURED)


def test_nor_is_one_that_finds_no_room_on_a_gpu() -> None:
    ending = call("test_contradictions:other_gpu_program", limits=Limits(60.0))
    assert ending.state == NOT_MEASURED
    assert (ending.message or "").startswith("other programs held 76.9 of the GPU's 84.9 GB: RuntimeError: CUDA out of")
    assert call("test_contradictions:own_gpu_memory", limits=Limits(60.0)).state == NO_MEMORY
    assert call("os:abort", limits=Limits(60.0)).state == FAILED


def test_what_was_not_measured_is_neither_ranked_nor_rejected(tmp_path: Path) -> None:
    case = run_of(batch_size=4, count=4)
    static, eager = (replace(case, **changed) for changed in ({"kv_cache": "static"}, {"attention": "eager"}))
    records = [
        *ran(case, [1000, 1010, 990]),
        result(static, 0, NOT_MEASURED, None, message="killed by the kernel: other programs took the rest"),
        *ran(eager, [900, 910, 905]),
        result(eager, 3, NOT_MEASURED, None, message="killed by the kernel: other programs took the rest"),
    ]
    path = write(tmp_path / "x.jsonl", *records)
    (advice,) = recommend(read_results(path))
    assert advice.best["attention"] == "eager"  # of its other repeats
    assert (advice.candidates, advice.rejected) == (2, ())
    assert [item.settings["kv_cache"] for item in advice.unmeasured] == ["static"]
    code, out, _ = called(["sweep", "recommend", str(path)], tmp_path)
    assert (code, "not measured: killed by the kernel" in " ".join(out.split()), "rejected" in out) == (0, True, False)
