"""Benchmarks: cases and grids, runs that survive any case, measured figures, the commands."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from bench_data import ENVIRONMENT, FIGURES, fault, line_of, result, run_of
from captures import captured, settings
from conftest import Cli

from molprof.common.bench_records import digest, read_results
from molprof.common.errors import UnsupportedError, UsageError
from molprof.common.process.guarded import Limits
from molprof.common.settings import CaptureSettings
from molprof.profiler.bench.cases import Case, SdpaCase, case_id, from_json, to_json
from molprof.profiler.bench.facts import CaseFacts, unsupported
from molprof.profiler.bench.kernels import read_shape, sdpa_cases
from molprof.profiler.bench.schedule import FinishedTurn, SchedulePlan, measure, run_plan, turns
from molprof.profiler.bench.sdpa import flops, least_bytes, padding_mask
from molprof.profiler.engines.backends import held_bytes
from molprof.profiler.jobs.results_file import ResultsFile

CPU = CaseFacts("cpu", None, True, (), ENVIRONMENT)
H100 = CaseFacts("cuda:0", (9, 0), True, ("flash_attn", "flash_attn_interface", "triton", "optimum.quanto"), {})
OLD = CaseFacts("cuda:0", (7, 0), False, (), {})
RUN = run_of()
KERNEL = SdpaCase("auto", 4, 16, 8, 128, 128, 64)


# Cases and grids


def test_a_case_survives_json() -> None:
    again = from_json(json.loads(json.dumps(to_json(KERNEL))))
    assert (again, case_id(again)) == (KERNEL, "44c1bcd91f50")


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
        (replace(RUN, processor="xgrammar"), CPU, "pip install 'xgrammar>=0.2'"),
        (replace(KERNEL, backend="flash-attn"), CPU, "runs on GPUs only"),
        (replace(KERNEL, backend="flash-attn", mask="padding"), H100, "accepts no mask but the causal one"),
        (replace(KERNEL, backend="flex"), replace(CPU, compiler=False), "requires a C.. compiler"),
        (replace(KERNEL, backend="cudnn"), CPU, None),  # torch says itself why not
    ],
)
def test_what_cannot_run_is_known_before(case: Case | CaptureSettings, facts: CaseFacts, reason: str | None) -> None:
    found = unsupported(line_of(case) if isinstance(case, CaptureSettings) else case, facts)
    assert (found is None) == (reason is None)
    assert re.search(reason or "", found or "")


def test_a_prefill_without_mask_is_causal_and_a_decode_step_asks_once() -> None:
    cases = sdpa_cases((read_shape("2x4x2x16x8"),), ("math",), ("prefill", "decode"), ("none", "padding"))
    assert [(case.queries, case.keys, case.mask) for case in cases] == [
        (16, 16, "causal"), (16, 16, "padding"), (1, 16, "none"), (1, 16, "padding"),
    ]  # fmt: skip
    for text in ("", "1x2x3x4", "1x2x3x4x5x6", "0x1x1x1x1", "axbxcxdxe", "1x2x3x4x-5"):
        with pytest.raises(UsageError, match="is no shape"):
            read_shape(text)


# Runs. In place of measuring, `fault` says what becomes of a case.


def run_all(path: Path, *cases: Case, facts: CaseFacts = CPU, **options: Any) -> list[FinishedTurn]:
    settings = {"repeats": 1, "seed": 0, "limits": Limits(60.0), "measure": "bench_data:measured", **options}
    with closing(ResultsFile(path)) as results:
        return [*run_plan(SchedulePlan(cases=cases, **settings), facts, results, lambda *told: None)]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_all_results_are_kept_whatever_becomes_of_a_case(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    cases = [fault("ok"), fault("raise"), fault("unsupported"), replace(KERNEL, backend="flash-attn")]
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


@pytest.mark.usefixtures("anew")
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
    plan = SchedulePlan(tuple(fault("ok", heads=number) for number in range(1, 9)), 3, 5, Limits(1.0))
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
from molprof.profiler.bench.facts import CaseFacts
cases = [bench_data.fault(name) for name in sys.argv[1].split(",")]
schedule.SchedulePlan.__init__.__defaults__ = (*schedule.SchedulePlan.__init__.__defaults__[:-1], "bench_data:measured")
running = bench.CaseOptions(output=bench.Path("out.jsonl"), resume="--resume" in sys.argv, repeats=1, limit=2.0)
sys.exit(bench.run(cases, CaseFacts("cpu", None, True, (), bench_data.ENVIRONMENT), running))
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


def test_whole_generation_is_measured_pass_by_pass(tmp_path: Path) -> None:
    asked = settings(timed_only=True, kv_cache="static", max_new_tokens=4, count=2, sampling="greedy")
    result = captured(tmp_path / "a.json", asked)
    (found,) = read_results(tmp_path / "a.json").results
    figures = found.figures or {}
    names = ("wall_ns", "phases_ns", "warmup_ns")
    assert [len(figures[name]) for name in names] == [2, 2, 1]
    assert (figures["tokens"], figures["steps"]) == (
        sum(len(run.token_ids) for run in result.manifest.molecules), sum(result.manifest.steps_per_batch),
    )  # fmt: skip
    assert figures["kv_cache_bytes"] > 0
    assert len(figures["machine"]["passes"]) == 2
    assert (found.settings["kv_cache"], found.settings["passes"]) == ("static", 2)
    assert "traceEvents" not in json.loads((tmp_path / "a.json").read_text())
    with pytest.raises(UsageError, match="--full is of the recorded pass"):
        replace(asked, full=True)


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


def test_shares_of_an_earlier_submission_are_not_replaced(molprof: Cli, tmp_path: Path) -> None:
    (tmp_path / "out.1-of-2.jsonl").write_text("")
    command = ("bench", "sdpa", "-o", "out.jsonl", "--submit", "slurm", "--tasks")
    done = molprof(*command, "2")
    assert (done.returncode, "out.1-of-2.jsonl exists from an earlier submission" in done.stderr) == (2, True)
    done = molprof(*command, "999")
    assert (done.returncode, "--tasks 999 for 64 cases: some would have none" in done.stderr) == (2, True), done.stderr
