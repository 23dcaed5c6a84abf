"""Whole captures of random tiny models: figures of the trace add up, and a failure leaves nothing wrong."""

from __future__ import annotations

import copy
import dataclasses
import resource
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from captures import captured, events, inputs, of, settings
from tiny import loaded
from torch._dynamo.utils import counters

from molprof import api
from molprof.common.errors import RunError, TakenError, UsageError
from molprof.common.manifest import PHASES, SequenceRun, Window, from_json
from molprof.common.values import bytes_text
from molprof.profiler.capture.capture import capture
from molprof.profiler.capture.passes import CaptureProgress
from molprof.profiler.capture.run import GRAPHS_KEY, CaptureResult, captures_graphs, choose_window, graphs_path
from molprof.profiler.constraints import make_processor
from molprof.profiler.constraints.base import Rows
from molprof.profiler.engines import BatchResult
from molprof.profiler.engines.runner import PassResult
from molprof.profiler.models.load import LoadedModel
from molprof.profiler.molecules.smiles import split_atoms
from molprof.profiler.molecules.template import build_template
from molprof.profiler.recording.tracefile import TOKENS_PID, OutputFile

WIDTH = 128_256
# The sums of so short a run may miss more than 1 % of its wall time.
SHORT = {"wall_time"}


@pytest.fixture(scope="module")
def constrained(tmp_path_factory: pytest.TempPathFactory) -> tuple[CaptureResult, list[CaptureProgress]]:
    seen: list[CaptureProgress] = []
    path = tmp_path_factory.mktemp("constrained") / "out.json.gz"
    result = captured(path, settings(processor="generic", disagreement=True), report=seen.append)
    assert sorted(item.name for item in path.parent.iterdir()) == ["in.smi", "out.json.gz"]
    return result, seen


def test_a_window_of_a_constrained_run(constrained: tuple[CaptureResult, list[CaptureProgress]]) -> None:
    result, seen = constrained
    trace, all_events = events(result.path)
    manifest = from_json(trace["molprof"])
    assert (manifest, trace["traceName"]) == (result.manifest, "out.json.gz")
    assert [(run.smiles, run.batch, run.row) for run in manifest.molecules] == [
        ("CC=O", 0, 0), ("C", 0, 1), ("C=CO", 1, 0),
    ]  # fmt: skip
    assert [run.template.free_per_block for run in manifest.molecules if run.template] == [[14] * 3, [14], [14] * 3]
    for run in manifest.molecules:
        assert run.template is not None
        assert len(run.token_ids) == run.template.tokens + 1 == len(run.kinds) == len(run.blocks)
        assert run.kinds.endswith("ce")
        assert run.text.startswith("[CONFORMER][C]<")
        # 1,399 logits at a FREE position, 1,433 at the last of a block, all but one where a token is forced.
        inside, forced = run.template.free - run.template.blocks, 55 - run.template.free
        assert run.masked_logits == forced * (WIDTH - 1) + inside * 1399 + run.template.blocks * 1433
        assert len(run.needed_per_block or ()) == run.template.blocks
    assert (manifest.steps_per_batch, [skipped.line for skipped in manifest.skipped]) == ([55, 55], [2])
    assert (manifest.settings.processor, manifest.resolved.processor) == ("generic", "generic")
    assert (manifest.resolved.placeholder, manifest.command) == ("0.0000,0.0000,0.0000", ["molprof", "capture"])

    # The second molecule has 20 tokens, so the window ends with its last step.
    assert manifest.window == Window(False, 0, 1, 19)
    steps = [event for event in of(all_events, "user_annotation") if ".step " in event["name"]]
    assert [event["name"] for event in steps] == [f"molprof.step batch=0 step={step}" for step in range(1, 20)]
    tokens = of(all_events, "molprof.token")
    for row in (0, 1):
        mine = [event for event in tokens if event["args"]["sequence"] == row]
        assert [(event["ts"], event["dur"]) for event in mine] == [(event["ts"], event["dur"]) for event in steps]
        assert [event["args"]["token_id"] for event in mine] == manifest.molecules[row].token_ids[1:20]
        assert {event["pid"] for event in mine} == {TOKENS_PID}
    sequences = of(all_events, "molprof.sequence")
    assert [event["args"]["token_id"] for event in sequences] == [run.token_ids for run in manifest.molecules]
    assert (len(tokens), sequences[2]["dur"]) == (2 * 19, 0.0)

    timings = manifest.timings
    assert (len(timings.warmup_ns), len(timings.repeats), manifest.problems) == (1, 2, [])
    for repeat in timings.repeats:
        assert list(map(len, repeat.steps_ns)) == manifest.steps_per_batch
        assert set(repeat.phases_ns) == set(PHASES) - {"compile"}
        assert sum(repeat.phases_ns.values()) <= repeat.wall_ns
        of_phases = {name: list(map(len, batches)) for name, batches in repeat.step_phases_ns.items()}
        assert of_phases["prefill"] == [1] * len(manifest.steps_per_batch)
        assert of_phases["processor"] == manifest.steps_per_batch
        each = zip(*(map(sum, batches) for batches in repeat.step_phases_ns.values()), strict=True)
        assert list(map(sum, each)) == list(map(sum, repeat.steps_ns))
    assert timings.profiled_steps_ns == sum(round(event["dur"] * 1000) for event in steps)
    stages = ["count", "repeat", "unmarked", "profile", "disagreement", "write"]
    assert [stage for stage in dict.fromkeys(item.stage for item in seen) if stage != "machine"] == stages


def recomputed(run: SequenceRun) -> list[tuple[float, int, int, str, str, float]]:
    """Probability, bounds of the rank, choice, forbidden, removed of each token, from one forward over the text."""
    model = loaded("llama")
    processor: Any = make_processor("generic", model.target)
    prompt = model.tokenizer(run.prompt)["input_ids"]
    whole = torch.tensor([[*prompt, *run.token_ids]])
    with torch.inference_mode():
        found = model.model(whole).logits[0].float()
    template = build_template(split_atoms(run.smiles or ""), model.tokenizer, processor.placeholder)
    studied, rows = processor.start(Rows([], len(prompt), [template])), []
    for place, token in enumerate(run.token_ids):
        scores = found[len(prompt) + place - 1]
        masked = studied(whole[:, : len(prompt) + place], scores.clone().unsqueeze(0))[0]
        above = [int((scores > scores[token] + shift).sum()) for shift in (1e-4, -1e-4)]
        choice = "c" if int((masked > -torch.inf).sum()) == 1 else "f"
        forbidden = str(int(masked[scores.argmax()] == -torch.inf))
        chances = torch.softmax(scores.double(), 0)
        rows.append((float(chances[token]), *above, choice, forbidden, float(chances[masked == -torch.inf].sum())))
    return rows


def test_disagreement_is_what_a_full_forward_says(constrained: tuple[CaptureResult, list[CaptureProgress]]) -> None:
    result, _ = constrained
    for run in result.manifest.molecules:
        found, expected = run.disagreement, recomputed(run)
        assert found is not None
        assert found.probabilities == pytest.approx([row[0] for row in expected], rel=1e-3)
        assert found.removed == pytest.approx([row[5] for row in expected], abs=1e-4)
        assert all(low <= rank <= high for rank, (_, low, high, *_) in zip(found.ranks, expected, strict=True))
        assert (found.choices, found.forbidden) == (
            "".join(row[3] for row in expected),
            "".join(r[4] for r in expected),
        )
    run = api.report(result.path).run
    assert run is not None
    assert run.disagreement is not None
    count = sum(len(item.token_ids) for item in result.manifest.molecules)
    assert (run.disagreement.molecules, run.disagreement.all.tokens) == (3, count)
    assert sum(item.agreement.tokens for item in run.disagreement.bins) == count
    assert run.drift is not None
    rules = {rule.rule: rule.blocks for rule in run.drift.junk_rules}
    assert (rules["strict"], rules["malformed"]) == (run.junk_blocks, run.malformed_blocks)


def test_a_processor_that_writes_another_text_in_each_pass_has_no_disagreement(tmp_path: Path) -> None:
    asked = settings(processor="users:Changes", max_new_tokens=3, warmup=0, repeats=1, count=1, disagreement=True)
    result = captured(tmp_path / "out.json", asked, inputs(tmp_path, 1))
    assert [run.disagreement for run in result.manifest.molecules] == [None]
    assert "the pass for disagreement wrote another text for 1 answer, for which none is recorded" in result.notes


def test_an_unconstrained_run_recorded_whole(tmp_path: Path) -> None:
    result = captured(tmp_path / "out.json", settings(full=True, max_new_tokens=5, repeats=1, warmup=0))
    manifest = result.manifest
    _, all_events = events(result.path)
    assert manifest.resolved.processor is manifest.resolved.placeholder is None
    assert [(run.masked_logits, run.valid) for run in manifest.molecules] == [(None, False)] * 3
    cut = "cut off after 5 tokens: no [CONFORMER]...[/CONFORMER] around the whole text"
    assert manifest.molecules[0].problem == cut
    expected = {f"molprof.{phase} batch={batch}" for phase in ("tokenize", "setup", "text") for batch in (0, 1)}
    for batch in (0, 1):
        for step in range(5):
            phases = ("step", "prefill" if step == 0 else "forward", "processor", "sampling", "bookkeeping")
            expected |= {f"molprof.{phase} batch={batch} step={step}" for phase in phases}
    assert {event["name"] for event in of(all_events, "user_annotation")} == expected
    assert len(of(all_events, "molprof.token")) == 15
    assert manifest.timings.profiled_wall_ns is not None
    assert "template" not in manifest.timings.repeats[0].phases_ns


def test_forced_runs_make_several_tokens_in_a_step_and_all_sums_hold(tmp_path: Path) -> None:
    asked = settings(processor="generic", sort=True, forced_runs=True, window=(13, 15), repeats=1, warmup=0)
    manifest = captured(tmp_path / "out.json", asked).manifest
    assert [(run.sequence, run.batch, run.row) for run in manifest.molecules] == [(0, 0, 0), (1, 1, 0), (2, 0, 1)]
    assert (manifest.steps_per_batch, manifest.rows_per_step) == ([42, 14], [[2] * 42, [1] * 14])
    first = manifest.molecules[0]
    # [CONFORMER][C]< and a choice; at the end of each block what stands between it and the next one.
    assert first.step_tokens == [4, *[1] * 12, 4, *[1] * 13, 5, *[1] * 13, 4]
    assert (manifest.resolved.sorted, manifest.resolved.host_reads, manifest.timings.signature_ns) == (True, 0, None)
    _, all_events = events(tmp_path / "out.json")
    steps = [event for event in of(all_events, "user_annotation") if ".step " in event["name"]]
    mine = [event for event in of(all_events, "molprof.token") if event["args"]["sequence"] == 0]
    assert [event["args"]["step"] for event in mine] == [13, 13, 13, 13, 14, 15]
    assert [event["args"]["token_id"] for event in mine] == first.token_ids[16:22]
    assert mine[0]["ts"] == steps[0]["ts"]
    assert sum(round(event["dur"] * 1000) for event in mine) == manifest.timings.profiled_steps_ns
    report = api.report(tmp_path / "out.json")
    assert {check.id for check in report.checks if not check.holds} <= SHORT
    assert report.run is not None
    # Sequence 2 has a bond token more in another place; both run for 42 steps, the lone atom's 14.
    assert (report.run.row_steps, report.run.idle_row_steps) == (2 * 42 + 14, 0)
    assert report.run.window.tokens == len(of(all_events, "molprof.token"))
    assert report.run.setup.loop == "sorted, forced runs"


def test_dropped_rows_are_no_row_steps(tmp_path: Path) -> None:
    asked = settings(processor="generic", drop_finished=True, repeats=1, warmup=0, count=2)
    manifest = captured(tmp_path / "out.json", asked, inputs(tmp_path, 2, "C\nO\n")).manifest
    assert manifest.rows_per_step == [[2] * 20 + [1]]
    report = api.report(tmp_path / "out.json")
    assert {check.id for check in report.checks if not check.holds} <= SHORT
    assert report.run is not None
    assert (report.run.row_steps, report.run.idle_row_steps) == (41, 0)
    assert report.run.setup.loop == "input order, finished dropped"


class TakenForGpu(LoadedModel):
    """A model on a CPU that compiles, and captures graphs, as one on a GPU does."""

    @property
    def on_gpu(self) -> bool:
        return True


def test_what_was_compiled_when_and_the_pass_that_records_the_capture_of_graphs(tmp_path: Path) -> None:
    torch._dynamo.reset()
    counters.clear()
    found = loaded("llama")
    model = TakenForGpu(**{**vars(found), "model": copy.deepcopy(found.model)})
    seen: list[CaptureProgress] = []
    asked = settings(processor="generic", max_new_tokens=6, kv_cache="static", compile="auto")
    for mode in ("eager", "auto"):  # `auto` compiles on GPUs only; it may capture graphs
        given = dataclasses.replace(asked, compile=mode)
        result = captured(tmp_path / f"{mode}.json.gz", given, model=model, report=seen.append)
        manifest, timings = result.manifest, result.manifest.timings
        assert manifest.rows_per_step == [[2] * 6, [2] * 6]  # the spare row is computed, and no molecule
        assert [len(run.token_ids) for run in manifest.molecules] == [6, 6, 6]
        if mode == "eager":
            assert (timings.warmup_compiles, [repeat.compiles for repeat in timings.repeats]) == ([1], [0, 0])
            assert timings.warmup_compile_ns is not None
            assert 0 < timings.warmup_compile_ns[0] < timings.warmup_ns[0]
            assert dict(counters["graph_break"]) == {}
    rows, columns = 2, 5 + 6
    size = 2 * 1 * 1 * 8 * rows * columns * 4  # keys and values: layers, heads, width, float32
    assert (f"static KV cache: {bytes_text(size)} ({rows} rows x {columns} tokens)",) in {item.notes for item in seen}

    path = graphs_path(result.path)
    assert path.name == "auto.graphs.json.gz"
    document, trace = events(path)
    assert document[GRAPHS_KEY]["replay"] == "auto.json.gz"
    steps = [event["name"] for event in of(trace, "user_annotation") if event["name"].startswith("molprof.step")]
    assert sorted(steps) == ["molprof.step batch=0 step=2", "molprof.step batch=0 step=3"]
    assert of(trace, "python_function")
    assert any(event["args"].get("Input Dims") for event in of(trace, "cpu_op"))
    assert [item.notes[0] for item in seen if item.stage == "graphs" and item.notes][-1].endswith(
        f"--graph-capture {path}"
    )
    assert not graphs_path(tmp_path / "eager.json.gz").exists()
    torch._dynamo.reset()
    captured(tmp_path / "short.json", dataclasses.replace(asked, max_new_tokens=3), model=model, report=seen.append)
    assert seen[-1].notes == ("the capture of the graphs is not recorded: answers have 3 steps, not 4",)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"compile": "max-autotune"}, True),
        ({"compile": "off"}, False),
        ({"compile": "default"}, False),
        ({"drop_finished": True}, False),
        ({"kv_cache": "dynamic"}, False),
    ],
)
def test_settings_with_graphs(changes: dict[str, Any], expected: bool) -> None:
    asked = settings(**{"kv_cache": "static", **changes})
    assert (captures_graphs(asked, True), captures_graphs(asked, False)) == (expected, False)


@pytest.mark.parametrize(
    ("asked", "lengths", "appended", "window"),
    [
        (None, (100, 90), None, (20, 39)),
        (None, (100, 30), None, (10, 29)),
        (None, (100, 15), None, (1, 14)),
        (None, (100, 1), None, (0, 0)),
        ((0, 3), (10, 5), None, (0, 3)),
        ((5, 99), (10, 5), None, (5, 9)),
        (None, (9, 4), ((5, 1, 1, 2), (3, 1)), (1, 1)),  # steps that made several tokens
        ((1, 9), (9, 4), ((5, 1, 1, 2), (3, 1)), (1, 3)),
    ],
)
def test_the_steps_to_record(asked: Any, lengths: tuple[int, ...], appended: Any, window: tuple[int, int]) -> None:
    rows = tuple(tuple(range(length)) for length in lengths)
    steps = max(lengths if appended is None else map(len, appended))
    result = PassResult((BatchResult(rows, (len(rows),) * steps, appended),), 1, 0, 0)
    assert choose_window(asked, False, result) == Window(False, 0, *window)
    with pytest.raises(UsageError, match=f"window 100:200 begins after the first batch's last step {steps - 1}"):
        choose_window((100, 200), False, result)


@pytest.mark.parametrize("stage", ["repeat", "profile", "write"])
def test_an_interrupt_leaves_nothing(tmp_path: Path, stage: str) -> None:
    def interrupt(progress: CaptureProgress) -> None:
        # The file is made late: a capture that is killed in its timed passes leaves nothing.
        late = progress.stage in ("profile", "write")
        assert late or [path.name for path in tmp_path.iterdir()] == ["in.smi"]
        if progress.stage == stage:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        captured(tmp_path / "out.json", settings(processor="generic", max_new_tokens=3), report=interrupt)
    assert [path.name for path in tmp_path.iterdir()] == ["in.smi"]
    assert "prepare_inputs_for_generation" not in loaded("llama").model.__dict__


def test_a_disk_that_is_full_while_torch_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # bytecode written under the limit may be cut
    (tmp_path / "out.json").write_text("old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))  # Python ignores the signal
    try:
        with pytest.raises(RunError, match=r"(?m)^cannot write .*/out\.json: File too large$"):
            captured(tmp_path / "out.json", settings(repeats=1, max_new_tokens=3))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / "out.json").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.smi", "out.json"]


@pytest.mark.parametrize("chosen", [True, False])
def test_a_trace_that_another_capture_wrote_meanwhile_stays(tmp_path: Path, chosen: bool) -> None:
    def write(progress: CaptureProgress) -> None:
        if progress.stage == "write":
            (tmp_path / "out.json").write_text("theirs")

    output, asked = OutputFile(tmp_path / "out.json", chosen=chosen), settings(repeats=1, max_new_tokens=3)
    if chosen:
        assert captured(output, asked, report=write).path == tmp_path / "out-2.json"
    else:
        with pytest.raises(TakenError, match=r"meanwhile; this result is kept: .*/out-2\.json"):
            captured(output, asked, report=write)
    assert (tmp_path / "out.json").read_text() == "theirs"
    assert api.report(tmp_path / "out-2.json").run is not None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device": "tpu"}, "no device 'tpu'"),
        ({"device": "cuda:99"}, r"'cuda:99' is not available|no GPU 99"),
        ({"device": "cpu", "kv_cache": "offloaded"}, "kv-cache 'offloaded' requires a GPU: without one, every cache"),
        ({"device": "cpu", "kv_cache": "quantized"}, "needs the package optimum-quanto, which is not installed"),
        ({"engine": "mine"}, "no engine 'mine'"),
    ],
)
def test_what_cannot_be_is_refused_before_loading(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    seen: list[CaptureProgress] = []
    with pytest.raises(UsageError, match=message):
        capture(settings(**changes), OutputFile(tmp_path / "out.json"), seen.append)
    assert seen == []


@pytest.mark.parametrize("drop", [False, True], ids=["generate", "own"])
def test_a_temperature_that_leaves_nothing_to_sample(tmp_path: Path, drop: bool) -> None:
    asked = settings(sampling="sample", temperature=1e-300, drop_finished=drop)
    with pytest.raises(RunError, match="no token can be sampled: the scores of a row contain NaN"):
        captured(tmp_path / "out.json", asked)


def test_a_preset_at_another_size_and_remarks_on_the_input(tmp_path: Path) -> None:
    path, size = tmp_path / "in.smi", "layers=5,hidden=256,heads=8,kv_heads=4,head_dim=64"
    path.write_text("C\nxx\n")
    seen: list[CaptureProgress] = []
    asked = settings(smiles=str(path), model="qwen", repeats=1, warmup=0, max_new_tokens=3, size=size, device="cpu")
    result = capture(asked, OutputFile(tmp_path / "out.json"), seen.append)
    assert (seen[0].stage, seen[0].notes) == (
        "load",
        (
            f"{path}, line 2: RDKit cannot read the SMILES 'xx'; skipped",
            f"{path}: 1 readable molecule, 3 were asked for",
        ),
    )
    assert [(item.number, item.of) for item in seen if item.stage == "weights"] == [(layer, 5) for layer in range(1, 6)]
    assert (result.notes, [item.line for item in result.manifest.skipped]) == ((), [2])
    run = api.report(result.path).run
    assert run is not None
    assert (run.setup.size, run.setup.weights, run.setup.label) == (size, "trained", "qwen 43m no lp")
    asked = dataclasses.replace(asked, weights="random", size="layers=1")
    result = capture(asked, OutputFile(tmp_path / "random.json"))
    said = "the weights are random: times and launches are real, tokens and drift are not meaningful"
    assert (result.notes, result.manifest.resolved.weights) == ((said,), "random")
