"""Benchmarks: cases and grids, the file of results, a run of cases whatever becomes of them, and what is shown."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from bench_data import ENVIRONMENT, FIGURES, fault, ran, result, timed, write
from conftest import Cli

from molprof.analysis.bench.summary import summed
from molprof.analysis.documents.benchmark import bench_document
from molprof.analysis.documents.plots import BENCH_PLOTS, NotRecordedError, plot_file
from molprof.analysis.render import render
from molprof.common.bench_records import digest, read_results
from molprof.common.errors import RunError, TraceError, UnsupportedError, UsageError
from molprof.common.process.guarded import Limits
from molprof.common.settings import Setting, rows
from molprof.profiler.bench.cases import Case, GenerateCase, SdpaCase, case_id, from_json, measure, to_json
from molprof.profiler.bench.facts import Facts, unsupported
from molprof.profiler.bench.generation import held_bytes
from molprof.profiler.bench.grids import BENCHMARKS, Benchmark, generation_cases, read_shape, sdpa_cases, values_of
from molprof.profiler.bench.schedule import Plan, run_plan, turns
from molprof.profiler.bench.sdpa import flops, least_bytes, padding_mask
from molprof.profiler.jobs.results_file import ResultsFile, collected
from molprof.profiler.jobs.runner import Step
from molprof.profiler.jobs.status import JobStatus

CPU = Facts("cpu", None, True, (), ENVIRONMENT)
H100 = Facts("cuda:0", (9, 0), True, ("flash_attn", "flash_attn_interface", "triton", "optimum.quanto"), {})
OLD = Facts("cuda:0", (7, 0), False, (), {})
RUN = GenerateCase(model="qwen")
KERNEL = SdpaCase("auto", 4, 16, 8, 128, 128, 64)
PLAIN = GenerateCase(model="qwen", batch_size=4, count=4)
STATIC = replace(PLAIN, kv_cache="static")


@pytest.fixture(autouse=True)
def quiet_machine() -> None:
    """The machine is what each test says."""


# Cases and grids


@pytest.mark.parametrize("case", [RUN, replace(RUN, processor="qwen", tf32=True, count=3), KERNEL], ids=["a", "b", "c"])
def test_a_case_survives_json(case: Case) -> None:
    again = from_json(json.loads(json.dumps(to_json(case))))
    assert (again, case_id(again)) == (case, case_id(case))
    assert case_id(KERNEL) == "44c1bcd91f50"
    assert len({case_id(RUN), case_id(replace(RUN, passes=2)), case_id(replace(RUN, threads=1))}) == 3


@pytest.mark.parametrize(
    "row", [row for row in rows(GenerateCase).values() if row.axis is not None], ids=lambda row: row.name
)
def test_values_of_an_axis_have_labels_of_their_own(row: Setting) -> None:
    case = replace(RUN, kv_cache="static")
    other = {str: "other", bool: not row.default, int: 7, float: 0.5}[row.type]
    if row.accepted is not None:
        other = next(value for value in row.accepted if value not in (row.default, "static", "off"))
    assert replace(case, **{row.name: other}).label() != case.label()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv_heads": 5}, "16 heads cannot share 5 KV heads"),
        ({"mask": "causal", "queries": 1}, "has no agreed meaning"),
        ({"head_dim": 0}, "head dim 0 is below 1"),
        ({"backend": "magic"}, "no backend 'magic'"),
    ],
)
def test_what_is_no_kernel_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        replace(KERNEL, **change)


@pytest.mark.parametrize(
    ("case", "facts", "reason"),
    [
        (RUN, CPU, None),
        (replace(RUN, attention="sdpa-flash"), CPU, None),
        (replace(RUN, attention="sdpa-cudnn"), CPU, "on GPUs only"),
        (replace(RUN, attention="sdpa-cudnn"), H100, None),
        (replace(RUN, attention="flash_attention_2"), CPU, "runs on GPUs only"),
        (replace(RUN, attention="flash_attention_2"), OLD, "requires the package flash-attn"),
        (replace(RUN, attention="flash_attention_2"), H100, None),
        (replace(RUN, attention="flash_attention_2", dtype="float32"), H100, "16-bit numbers only"),
        (replace(RUN, attention="flash_attention_3"), replace(H100, capability=(8, 0)), "compute capability 9.0"),
        (replace(RUN, attention="flex_attention"), CPU, None),
        (replace(RUN, attention="flex_attention"), replace(CPU, compiler=False), "requires a C.. compiler"),
        (replace(RUN, kv_cache="offloaded"), CPU, "requires a GPU"),
        (replace(RUN, kv_cache="quantized"), CPU, "optimum-quanto"),
        (replace(RUN, kv_cache="quantized"), H100, None),
        (replace(RUN, kv_cache="static", compile="default"), OLD, "requires the package triton"),
        (replace(RUN, kv_cache="static", compile="eager"), OLD, None),
        (replace(RUN, tf32=True), OLD, "compute capability 8.0"),
        (replace(RUN, tf32=True), H100, None),
        (replace(RUN, cudnn_benchmark=True), CPU, "cuDNN runs on GPUs only"),
        (replace(RUN, processor="xgrammar"), CPU, "pip install 'molprof.xgrammar.'"),
        (replace(KERNEL, backend="flash-attn"), CPU, "runs on GPUs only"),
        (replace(KERNEL, backend="flash-attn", mask="padding"), H100, "accepts no mask but the causal one"),
        (replace(KERNEL, backend="flex"), replace(CPU, compiler=False), "requires a C.. compiler"),
        (replace(KERNEL, backend="cudnn"), CPU, None),  # torch says itself why not
    ],
)
def test_what_cannot_run_is_known_before(case: Case, facts: Facts, reason: str | None) -> None:
    found = unsupported(case, facts)
    assert (found is None) == (reason is None)
    assert re.search(reason or "", found or "")


def test_a_grid_has_every_combination_that_is_another_run_once() -> None:
    grid = {"kv_cache": ("dynamic", "static"), "compile": ("off", "default"), "batch_size": (3, 4)}
    cases = generation_cases({**values_of(Benchmark("", grid)), "count": 7})
    assert [(case.batch_size, case.kv_cache, case.compile, case.count) for case in cases] == [
        (3, "dynamic", "off", 9), (3, "static", "off", 9), (3, "static", "default", 9),
        (4, "dynamic", "off", 8), (4, "static", "off", 8), (4, "static", "default", 8),
    ]  # fmt: skip
    cases = generation_cases({**values_of(Benchmark("", {"batch_size": (1, 2, 8)})), "count": None})
    assert [(case.batch_size, case.count) for case in cases] == [(1, 8), (2, 8), (8, 8)]
    with pytest.raises(UsageError, match="batch size 0 is below 1"):
        generation_cases(values_of(Benchmark("", {"batch_size": (0, 2)})))
    for benchmark in BENCHMARKS.values():
        cases = generation_cases(values_of(benchmark))
        assert len(set(map(case_id, cases))) == len(cases) > 1


def test_a_prefill_without_mask_is_causal_and_a_decode_step_asks_once() -> None:
    cases = sdpa_cases((read_shape("2x4x2x16x8"),), ("math",), ("prefill", "decode"), ("none", "padding"))
    assert [(case.queries, case.keys, case.mask) for case in cases] == [
        (16, 16, "causal"), (16, 16, "padding"), (1, 16, "none"), (1, 16, "padding"),
    ]  # fmt: skip
    for text in ("", "1x2x3x4", "1x2x3x4x5x6", "0x1x1x1x1", "axbxcxdxe", "1x2x3x4x-5"):
        with pytest.raises(UsageError, match="is no shape"):
            read_shape(text)


# The file of results


@contextmanager
def largest_file(size_bytes: int) -> Iterator[None]:
    """A write beyond that size fails, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_line_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path, record = tmp_path / "out.jsonl", {"record": "run", "text": "a" * 100}
    with closing(ResultsFile(path)) as results:
        results.write(record)
        whole = path.read_bytes()
        with largest_file(len(whole) + 50), pytest.raises(RunError, match=r"cannot write .*: File too large"):
            results.write(record)
        assert path.read_bytes() == whole
        with path.open("ab") as file:  # what a killed neighbour began
            file.write(whole[:20])
        results.write(record)
    assert path.read_bytes() == 2 * whole


WRONG = {
    b'{"schema":"1","record":"run"}': " is not a benchmark record: schema: expected `int`, got `str`",
    b'{"record":"run"}': " is not a benchmark record: missing field `schema`",
    b'{"schema":9,"record":"run"}': " is of schema 9; this molprof reads up to 2",
    b'{"schema":1,"record":["run"]}': " is not a benchmark record: record: expected `str`, got `array`",
    b'{"schema":1,"record":"environment","id":["a"],"environment":{}}': ": id: expected `str`, got `array`",
    b'{"schema":1,"record":"result","environment":"b","repeat":0,"status":"ok"}': ": missing field `case`",
    b"\xff\xfe{}": " is not JSON: ",
    b"[" * 100_000: " is not JSON: ",
    b"a note of mine": " is not JSON: ",
}


@pytest.mark.parametrize("line", WRONG, ids=lambda line: line[:50].decode("ascii", "replace"))
def test_another_file_is_refused_by_both_sides_and_left_as_it_is(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(b'{"schema":1,"record":"run"}\n' + line + b"\n")
    before = path.read_bytes()
    for error, code, open_it in ((UsageError, 2, ResultsFile), (TraceError, 3, read_results)):
        with pytest.raises(error, match=re.escape(f"out.jsonl line 2{WRONG[line]}")) as raised:
            open_it(path)
        assert raised.value.exit_code == code
    assert path.read_bytes() == before


def test_results_of_schema_1_are_read_in_the_words_of_now(tmp_path: Path) -> None:
    hung = result(RUN, 0, "hung", None, message="killed", schema=1)
    auto = to_json(replace(RUN, processor="auto"))
    named = {**result(RUN, 0, "ok", FIGURES, schema=1), "settings": auto, "case": digest(auto)}
    first, second = read_results(write(tmp_path / "a.jsonl", hung, named)).results
    assert (first.status, first.case) == ("timed out", case_id(RUN))
    assert (second.settings["processor"], second.case) == ("generic", case_id(replace(RUN, processor="generic")))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"load_ns": -1}, "load_ns"),
        ({"kv_cache_bytes": 10**400}, "kv_cache_bytes"),
        ({"wall_ns": ["long"]}, r"wall_ns\[0\]: expected `int`, got `str`"),
        ({"wall_ns": []}, "no timed pass"),
    ],
)
def test_figures_that_nothing_can_have_measured_are_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    wrong = result(RUN, 0, "ok", {**FIGURES, **change})
    with pytest.raises(TraceError, match=f"figures: .*{message}"):
        summed(read_results(write(tmp_path / "out.jsonl", wrong)))


def test_a_retried_case_is_what_it_became_and_runs_of_the_same_case_add_up(tmp_path: Path) -> None:
    first = result(PLAIN, 0, "timed out", None, message="killed")
    for records, expected in (
        ([first], ("timed out", ())),
        ([first, *ran(PLAIN, [100, 200])], ("ok", (1e6, 2e6))),
        ([*ran(PLAIN, [100, 200]), *ran(PLAIN, [300])], ("ok", (1e6, 2e6, 3e6))),
        ([*ran(PLAIN, [100]), result(PLAIN, 1, "failed", None, message="no")], ("failed", (1e6,))),
    ):
        (found,) = summed(read_results(write(tmp_path / "a.jsonl", *records)))
        assert (found.status, found.times_ns) == expected


def test_a_busy_machine_is_told_beside_the_results(tmp_path: Path) -> None:
    busy = {"cores": 2, "before": None, "passes": [{"wall_ns": 1, "other_cores": 1.5, "throttled_ratio": 0.5}]}
    calm = {"cores": 2, "before": None, "passes": [{"wall_ns": 1, "other_cores": 0.1}]}
    records = [*ran(PLAIN, [1000], machine=busy), *ran(STATIC, [500], machine=calm), *timed(KERNEL, 200)]
    results = read_results(write(tmp_path / "a.jsonl", *records))
    text = " ".join(render(bench_document(results, "")).split())
    doubt = "other programs kept 1.5 of 2 cores busy; the control group was out of its share of CPU time for 50.0 %"
    assert f"times are not reliable: dynamic: during the timed passes {doubt} of the time" in text
    cases = json.loads(render(bench_document(results, ""), "json"))["cases"]
    assert [case["doubts"] for case in cases] == [f"{doubt} of the time", "", None]


def test_a_gpu_is_waited_for_and_a_line_cut_off_is_left_out(tmp_path: Path) -> None:
    machine = {**ENVIRONMENT, "gpu": "A GPU"}
    records = [{**item, "environment": digest(machine)} for item in ran(PLAIN, [1000, 900])]
    path = write(tmp_path / "x.jsonl", *records, environment=machine)
    assert "the host waits for the GPU" in render(bench_document(read_results(path), ""))
    path.write_bytes(path.read_bytes()[:-30])
    cut = read_results(path)
    assert (len(cut.results), "ends inside line 3" in cut.notes[0]) == (1, True)


@pytest.mark.parametrize("kind", BENCH_PLOTS)
def test_plots_are_drawn_the_same_each_time_or_say_what_is_missing(tmp_path: Path, kind: str) -> None:
    eight = replace(PLAIN, batch_size=8, count=8)
    records = [*ran(PLAIN, [1000]), *ran(STATIC, [500]), *ran(eight, [800]), *timed(KERNEL, 200)]
    results = read_results(write(tmp_path / "x.jsonl", *records))
    data = plot_file(kind, results, "svg")
    assert data == plot_file(kind, results, "svg")
    if kind == "heat":
        assert re.findall(r">(dynamic|static|\d+|no result)<", data.decode()).count("no result") == 1
        assert {"100", "125", "200", "4", "8"} <= set(re.findall(r">([\d.]+)<", data.decode()))
    empty = read_results(write(tmp_path / "y.jsonl", result(PLAIN, 0, "failed", None)))
    with pytest.raises(NotRecordedError, match="not recorded: ") as raised:
        plot_file(kind, empty, "svg")
    assert re.fullmatch(r"molprof bench \w+ -o FILE measures it; molprof bench show FILE: .*", raised.value.hint or "")


def test_files_of_shares_are_put_together_each_line_once(tmp_path: Path) -> None:
    one, other = {"gpu": "one"}, {"gpu": "another"}

    def written(name: str, machine: dict[str, Any], *cases: tuple[str, str]) -> Path:
        with closing(ResultsFile(tmp_path / name)) as results:
            for case, status in cases:
                where = results.environment(machine)
                line = {
                    "case": case,
                    "label": case,
                    "settings": {},
                    "environment": where,
                    "repeat": 0,
                    "status": status,
                }
                results.write({"record": "result", **line})
        return tmp_path / name

    output = written("all.jsonl", one, ("a", "ok"))
    parts = [written("1.jsonl", one, ("a", "ok"), ("b", "failed")), written("2.jsonl", other, ("a", "ok"))]
    with parts[1].open("ab") as file:
        file.write(b'{"schema":1,"record":"res')
    data = {"output": str(output), "parts": [*map(str, parts), str(tmp_path / "a task that never began.jsonl")]}
    for good in (False, False, True):  # collecting again adds nothing; parts stay while a task is queued again
        assert all(part.exists() for part in parts)
        collected(cast(JobStatus, SimpleNamespace(job=SimpleNamespace(data=data), good=good)))
        found = read_results(output).results
        assert [(item.case, item.environment, item.status) for item in found] == [
            ("a", digest(one), "ok"), ("b", digest(one), "failed"), ("a", digest(other), "ok"),
        ]  # fmt: skip
    assert [path.name for path in tmp_path.iterdir()] == ["all.jsonl"]


# Runs. In place of measuring, the model's name says what becomes of a case.


def run_all(path: Path, *cases: Case, facts: Facts = CPU, **options: Any) -> list[Step]:
    settings = {"repeats": 1, "seed": 0, "limits": Limits(60.0), "measure": "bench_data:measured", **options}
    with closing(ResultsFile(path)) as results:
        return [*run_plan(Plan(cases=cases, **settings), facts, results, lambda *told: None)]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_all_results_are_kept_whatever_becomes_of_a_case(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    cases = [fault("ok"), fault("raise"), fault("unsupported"), GenerateCase("ok", attention="flash_attention_2")]
    steps = run_all(path, *cases, repeats=2)
    # What is not ok is not repeated; what cannot run is said first.
    states = [step.ending.state for step in steps]
    assert (states[0], sorted(states)) == ("unsupported", ["failed", "ok", "ok", "unsupported", "unsupported"])
    environment, header, *results = lines(path)
    assert (environment["id"], environment["environment"]) == (digest(ENVIRONMENT), ENVIRONMENT)
    assert (header["record"], header["seed"], header["repeats"], header["cases"]) == ("run", 0, 2, 4)
    assert {record["environment"] for record in results} == {environment["id"]}
    assert {record["case"] for record in results} == {case_id(item) for item in cases}
    assert [record["status"] for record in results] == states
    good = [record for record in results if record["status"] == "ok"]
    assert ([record["repeat"] for record in good], good[0]["figures"]) == ([0, 1], FIGURES)
    # To go on: what is there is left out, what was not ok only without `retry`, a line that was cut off runs again.
    assert run_all(path, *cases, repeats=2, resume=True) == []
    assert sorted(step.ending.state for step in run_all(path, *cases, resume=True, retry=True)) == [
        "failed", "unsupported", "unsupported",
    ]  # fmt: skip
    assert [step.turn.repeat for step in run_all(path, fault("ok"), resume=True, repeats=3)] == [2]
    path.write_bytes(path.read_bytes()[:-20])
    assert [step.turn.repeat for step in run_all(path, fault("ok"), resume=True, repeats=3)] == [2]
    assert [record["record"] for record in lines(path)].count("environment") == 1


def test_out_of_memory_finds_the_largest_batch_that_fits(tmp_path: Path) -> None:
    # A row takes 40 MB: with Python itself, 3 rows stay below 160 MB and 4 do not.
    (step,) = run_all(tmp_path / "out.jsonl", fault("rows", 9), limits=Limits(60.0, 160_000_000))
    assert (step.ending.message or "").endswith("; the largest batch that fits: 3")
    record = lines(tmp_path / "out.jsonl")[-1]
    assert (record["status"], record["largest_batch"], record["fit_exact"]) == ("out of memory", 3, True)
    assert record["fit_tries"] == [
        {"batch": 4, "status": "out of memory"}, {"batch": 2, "status": "ok"}, {"batch": 3, "status": "ok"},
    ]  # fmt: skip


def test_order_is_interleaved_random_and_told_by_the_seed() -> None:
    plan = Plan(tuple(fault(str(number)) for number in range(8)), 3, 5, Limits(1.0))
    order = [*turns(plan)]
    assert [turn.repeat for turn in order] == [0] * 8 + [1] * 8 + [2] * 8
    rounds = [[turn.case for turn in order if turn.repeat == number] for number in range(3)]
    assert sorted(rounds[0]) == sorted(rounds[1]) == sorted(rounds[2]) == sorted(map(case_id, plan.cases))
    assert rounds[0] != rounds[1] != rounds[2]
    assert [*turns(plan)] == order
    assert [*turns(replace(plan, seed=6))] != order


SCRIPT = f"""
import sys
sys.path[:] = {sys.path!r}
from molprof.commands import bench
from molprof.profiler.bench import schedule
import bench_data
from molprof.profiler.bench.facts import Facts
cases = [bench_data.fault(name) for name in sys.argv[1].split(",")]
schedule.Plan.__init__.__defaults__ = (*schedule.Plan.__init__.__defaults__[:-1], "bench_data:measured")
running = bench.Running(output=bench.Path("out.jsonl"), resume="--resume" in sys.argv, repeats=1, limit=2.0)
sys.exit(bench.run(cases, Facts("cpu", None, True, (), bench_data.ENVIRONMENT), running))
"""


def test_an_interrupt_keeps_what_is_done_and_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    script = SCRIPT.replace("limit=2.0", "limit=60.0")
    with subprocess.Popen(
        [sys.executable, "-c", script, "sleep"], stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:  # fmt: skip
        while not Path("ready").exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        said = process.stderr.read()
    assert process.returncode == 130
    assert (
        "interrupted; out.jsonl has the results so far (0 of this run); continue with:\n  molprof sleep --resume"
        in said
    )
    other = {**ENVIRONMENT, "torch": "1.0\x1b"}
    with closing(ResultsFile(Path("out.jsonl"))) as results:
        results.write({**result(fault("sleep"), 0, "ok", FIGURES), "environment": results.environment(other)})
    line = [sys.executable, "-c", SCRIPT, "sleep,raise", "--resume"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (
        "1 result of these cases in out.jsonl: not counted, because their environment differs: torch 1.0\\x1b"
        in done.stderr
    )
    assert "results: 1 failed, 1 timed out\n" in done.stderr
    assert "killed at the limit of 2 s, in measured (bench_data.py:" in done.stderr
    assert done.returncode == 0  # the file has figures of another machine
    done = subprocess.run([sys.executable, "-c", SCRIPT, "raise"], capture_output=True, text=True, check=False)
    assert (done.returncode, "none of the cases has figures: ValueError: no such luck" in done.stderr) == (1, True)


# Measuring


@pytest.mark.parametrize(
    ("mask", "queries", "operations", "moved"),
    [
        ("none", 1, 4 * 2 * 4 * 16 * 8, 2 * (2 * 2 * 4 * 1 * 8 + 2 * 2 * 2 * 16 * 8)),
        ("causal", 16, 4 * 2 * 4 * 136 * 8, 2 * (2 * 2 * 4 * 16 * 8 + 2 * 2 * 2 * 16 * 8)),
        ("padding", 16, 4 * 2 * 4 * 256 * 8, 2 * (2 * 2 * 4 * 16 * 8 + 2 * 2 * 2 * 16 * 8) + 2 * 16 * 16),
    ],
)
def test_operations_and_bytes_by_hand(mask: str, queries: int, operations: int, moved: int) -> None:
    kernel = SdpaCase("auto", 2, 4, 2, queries, 16, 8, mask)
    assert (flops(kernel), least_bytes(kernel, 2)) == (operations, moved)


def test_a_padding_mask_is_causal_and_hides_what_is_padded() -> None:
    mask = padding_mask(SdpaCase("auto", 2, 1, 1, 2, 32, 8, "padding"), torch.device("cpu"))
    assert mask.sum(dim=3).flatten().tolist() == [31, 32, 29, 30]  # two tokens of the second row are padding


@pytest.mark.parametrize(("backend", "mask"), [("auto", "causal"), ("math", "padding")])
def test_kernels_on_a_cpu(backend: str, mask: str) -> None:
    figures = measure(to_json(SdpaCase(backend, 1, 4, 2, 16, 16, 8, mask, "float32", "cpu")))["figures"]
    assert len(figures["times_ns"]) >= 5
    assert min(figures["times_ns"]) > 0
    assert figures["largest_error"] < 1e-5
    assert (figures["chosen"] is None) == (backend != "auto")
    assert len(figures["machine"]["passes"]) == 1
    json.dumps(figures)


def test_a_kernel_that_torch_lacks_is_unsupported_by_its_own_words() -> None:
    with pytest.raises(UnsupportedError, match=r"No viable backend for scaled_dot_product_attention .*\(on cpu\)"):
        measure(to_json(SdpaCase("cudnn", 1, 4, 2, 16, 16, 8, "none", "float32", "cpu")))


def test_whole_generation_is_measured_pass_by_pass() -> None:
    case = GenerateCase("qwen", batch_size=2, count=2, max_new_tokens=4, passes=2, device="cpu", kv_cache="static")
    answer = measure(to_json(case))
    figures = answer["figures"]
    json.dumps(answer)
    assert [len(figures[name]) for name in ("wall_ns", "phases_ns", "warmup_ns", "prompt_widths")] == [2, 2, 1, 1]
    assert (figures["tokens"], figures["steps"], figures["row_steps"], figures["molecules"]) == (8, 4, 8, 2)
    assert (figures["processor"], figures["dtype"], figures["max_new_tokens"]) == (None, "float32", 4)
    assert figures["kv_cache_bytes"] > 0
    assert len(figures["machine"]["passes"]) == 2
    assert figures["machine"]["before"]["wall_ns"] > figures["machine"]["passes"][0]["wall_ns"] // 2
    assert re.fullmatch("[0-9a-f]{12}", figures["text_digest"])


def test_the_bytes_of_a_cache_count_each_storage_once() -> None:
    keys = torch.zeros(2, 3, 4)
    layer = SimpleNamespace(keys=keys, values=keys[:1], lengths=torch.zeros(9), more=[torch.zeros(2, 2)])
    assert held_bytes(SimpleNamespace(layers=[layer])) == 4 * (24 + 4)
    assert held_bytes(None) == 0


# Commands


def test_a_whole_benchmark_as_a_command(molprof: Cli, tmp_path: Path) -> None:
    shape = ("--shape", "1x2x1x16x8", "--phase", "decode", "--mask", "none", "--repeats", "1", "--device", "cpu")
    command = ("bench", "sdpa", *shape, "--backend", "auto,flash-attn", "-o", "out.jsonl")
    done = molprof(*command)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert done.stderr.endswith("results: 1 ok, 1 unsupported\nnext: molprof bench show out.jsonl\n")
    records = lines(tmp_path / "out.jsonl")[2:]
    assert {record["settings"]["backend"]: record["status"] for record in records} == {
        "auto": "ok", "flash-attn": "unsupported",
    }  # fmt: skip
    # Each process says what it ran on: the same machine as the one that was asked first.
    assert len({record["environment"] for record in records}) == 1
    assert "nothing left to run" in molprof(*command, "--resume").stderr


def test_words_for_processors_are_listed_by_what_they_stand_for(molprof: Cli, tmp_path: Path) -> None:
    (tmp_path / "molprof.toml").write_text('[models.mine]\npath = "qwen"\nprocessor = "grammar"\n')
    grid = ("--model", "mine,llama", "--processor", "none,lp,generic", "--device", "cpu", "--dry-run")
    listed = molprof("bench", "processors", *grid, "--share", "1/1").stdout
    labels = [line.split(maxsplit=1)[1].strip() for line in listed.splitlines() if " b8 sdpa dynamic" in line]
    assert labels == [
        "qwen no processor b8 sdpa dynamic", "qwen grammar b8 sdpa dynamic", "qwen generic b8 sdpa dynamic",
        "llama no processor b8 sdpa dynamic", "llama generic b8 sdpa dynamic",
    ]  # fmt: skip
    assert "5 of 5 cases can run on cpu (" in listed
    assert "Benchmark cases" in listed


def test_shares_of_an_earlier_submission_are_not_replaced(molprof: Cli, tmp_path: Path) -> None:
    (tmp_path / "out.1-of-2.jsonl").write_text("")
    command = ("bench", "sdpa", "-o", "out.jsonl", "--submit", "slurm", "--tasks")
    done = molprof(*command, "2")
    assert (done.returncode, "out.1-of-2.jsonl exists from an earlier submission" in done.stderr) == (2, True)
    done = molprof(*command, "999")
    assert (done.returncode, "--tasks 999 for 64 cases: some would have none" in done.stderr) == (2, True), done.stderr


def test_reading_results_needs_no_torch(tmp_path: Path) -> None:
    write(tmp_path / "x.jsonl", *ran(PLAIN, [1000]))
    for arguments in (["bench", "show", "x.jsonl"], ["recommend", "x.jsonl"], ["bench", "matrix", "--help"]):
        code = (
            "import sys; sys.modules['torch'] = None; sys.modules['transformers'] = None\n"
            f"from molprof.cli import main\nmain({arguments!r})"
        )
        line = [sys.executable, "-c", code]
        shown = subprocess.run(line, capture_output=True, text=True, check=False, cwd=tmp_path, env=os.environ)
        assert shown.returncode == 0, shown.stderr
