"""Whole captures of random tiny models: what is in the trace adds up, and failures leave nothing."""

from __future__ import annotations

import dataclasses
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from tiny import Script, loaded

from molprof.analysis.reports.load import load_report
from molprof.common.errors import RunError, UsageError
from molprof.common.manifest import Window, from_json
from molprof.common.phases import PHASES
from molprof.profiler.capture import capture as capture_module
from molprof.profiler.capture.capture import CaptureResult, capture, capture_loaded
from molprof.profiler.capture.passes import Progress
from molprof.profiler.capture.tracefile import TOKENS_PID
from molprof.profiler.capture.window import choose_window
from molprof.profiler.decoding import runner as generate_module
from molprof.profiler.decoding.runner import BatchResult, PassResult
from molprof.profiler.models.load import load, resolve_device
from molprof.profiler.molecules.prompts import Prompts, read_prompts
from molprof.profiler.settings import CaptureSettings, Decoding, Loop

FILE = "CC=O acetaldehyde\nxx\nC methane\nOC=C\n"


def inputs(folder: Path, count: int = 3) -> Prompts:
    path = folder / "in.smi"
    path.write_text(FILE)
    return read_prompts(path, count)


def settings(folder: Path, **changes: Any) -> CaptureSettings:
    base = CaptureSettings(
        "llama", folder / "out.json", batch_size=2, repeats=2, warmup=1, count=3, loop=Loop(sort=False)
    )
    return dataclasses.replace(base, **changes)


def events(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    text = gzip.decompress(path.read_bytes()) if path.name.endswith(".gz") else path.read_bytes()
    trace = json.loads(text)
    return trace, trace["traceEvents"]


def of(trace: list[dict[str, Any]], category: str) -> list[dict[str, Any]]:
    return [event for event in trace if event.get("cat") == category]


def test_constrained_window(tmp_path: Path) -> None:
    seen: list[Progress] = []
    asked = settings(tmp_path, processor="auto", output=tmp_path / "out.json.gz", command=("molprof", "capture"))
    result = capture_loaded(asked, loaded("llama"), inputs(tmp_path), seen.append)
    trace, all_events = events(result.path)
    manifest = from_json(trace["molprof"])
    assert manifest == result.manifest
    assert trace["traceName"] == "out.json.gz"

    assert [run.smiles for run in manifest.molecules] == ["CC=O", "C", "C=CO"]
    assert [(run.batch, run.row) for run in manifest.molecules] == [(0, 0), (0, 1), (1, 0)]
    assert [run.template.free_per_block for run in manifest.molecules if run.template] == [
        [14] * 3,
        [14],
        [14] * 3,
    ]
    for run in manifest.molecules:
        assert run.template is not None
        assert len(run.token_ids) == run.template.tokens + 1 == len(run.kinds) == len(run.blocks)
        assert run.kinds.endswith("ce")
        assert run.text.startswith("[CONFORMER][C]<")
    assert manifest.steps_per_batch == [55, 55]
    assert [skipped.line for skipped in manifest.skipped] == [2]
    assert manifest.generation.processor == "generic"
    assert manifest.generation.placeholder == "0.0000,0.0000,0.0000"
    assert manifest.command == ["molprof", "capture"]

    # The second molecule has 20 tokens, so the window ends with its last step.
    assert manifest.window == Window(False, 0, 1, 19)
    steps = [event for event in of(all_events, "user_annotation") if ".step " in event["name"]]
    assert [event["name"] for event in steps] == [f"molprof.step batch=0 step={step}" for step in range(1, 20)]
    tokens = of(all_events, "molprof.token")
    assert len(tokens) == 2 * 19
    for row in (0, 1):
        run = manifest.molecules[row]
        mine = [event for event in tokens if event["args"]["sequence"] == row]
        assert [(event["ts"], event["dur"]) for event in mine] == [(event["ts"], event["dur"]) for event in steps]
        assert [event["args"]["token_id"] for event in mine] == run.token_ids[1:20]
        assert {event["pid"] for event in mine} == {TOKENS_PID}
    sequences = of(all_events, "molprof.sequence")
    assert [event["args"]["token_id"] for event in sequences] == [run.token_ids for run in manifest.molecules]
    assert sum(event["args"]["tokens"] for event in sequences) == sum(len(run.token_ids) for run in manifest.molecules)
    assert sequences[2]["dur"] == 0.0

    timings = manifest.timings
    assert (len(timings.warmup_ns), len(timings.repeats)) == (1, 2)
    for repeat in timings.repeats:
        assert list(map(len, repeat.steps_ns)) == manifest.steps_per_batch
        assert set(repeat.phases_ns) == set(PHASES)
        assert sum(repeat.phases_ns.values()) <= repeat.wall_ns
    assert timings.profiled_steps_ns == sum(round(event["dur"] * 1000) for event in steps)
    assert result.notes == ()
    assert [item.stage for item in seen if item.batch == 0 and item.step == 0][-1] == "write"
    assert {item.stage for item in seen} == {"warmup", "repeat", "unmarked", "profile", "write"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.smi", "out.json.gz"]


def test_masked_logits_are_those_of_every_row_step(tmp_path: Path) -> None:
    result = capture_loaded(settings(tmp_path, processor="generic"), loaded("llama"), inputs(tmp_path))
    width, steps = 128_256, 55
    for run in result.manifest.molecules:
        template = run.template
        assert template is not None
        inside = template.free - template.blocks
        # 1,399 at a FREE position, 1,433 at the last of a block, all but one where a token is forced.
        forced = (steps - template.free) * (width - 1)
        assert run.masked_logits == forced + inside * 1399 + template.blocks * 1433


def test_unconstrained_full(tmp_path: Path) -> None:
    asked = settings(tmp_path, full=True, max_new_tokens=5, repeats=1, warmup=0)
    result = capture_loaded(asked, loaded("llama"), inputs(tmp_path))
    _, all_events = events(result.path)
    manifest = result.manifest
    assert manifest.generation.processor is manifest.generation.placeholder is None
    assert [run.masked_logits for run in manifest.molecules] == [None] * 3
    assert [run.valid for run in manifest.molecules] == [False] * 3
    assert (
        manifest.molecules[0].problem == "cut off after 5 tokens: no [CONFORMER]...[/CONFORMER] around the whole text"
    )
    names = {event["name"] for event in of(all_events, "user_annotation")}
    expected = {f"molprof.{phase} batch={batch}" for phase in ("tokenize", "setup", "text") for batch in (0, 1)}
    for batch in (0, 1):
        for step in range(5):
            phases = ("step", "prefill" if step == 0 else "forward", "processor", "sampling", "bookkeeping")
            expected |= {f"molprof.{phase} batch={batch} step={step}" for phase in phases}
    assert names == expected
    assert len(of(all_events, "molprof.token")) == 15
    assert manifest.timings.profiled_wall_ns is not None
    assert "template" not in manifest.timings.repeats[0].phases_ns


def test_sampled_passes_write_the_same_text(tmp_path: Path) -> None:
    asked = settings(tmp_path, processor="generic", decoding=Decoding("top_k", 0.8, top_k=5, seed=9))
    asked = dataclasses.replace(asked, max_new_tokens=12, repeats=1, warmup=0)
    result = capture_loaded(asked, loaded("llama"), inputs(tmp_path))
    assert result.notes == ()  # no pass differs
    generation = result.manifest.generation
    assert (generation.sampling, generation.seed) == ("sample", 9)
    assert generation.sampling_parameters == {"temperature": 0.8, "top_k": 5}
    again = capture_loaded(dataclasses.replace(asked, force=True), loaded("llama"), inputs(tmp_path))
    other = dataclasses.replace(asked, decoding=Decoding("top_k", 0.8, top_k=5, seed=8), force=True)
    assert texts(again) == texts(result)
    assert texts(capture_loaded(other, loaded("llama"), inputs(tmp_path))) != texts(result)


def texts(result: CaptureResult) -> list[str]:
    return [run.text for run in result.manifest.molecules]


def test_valid_junk_and_malformed_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    holes = "<0.0000,0.0000,0.0000>"
    script = {
        "[C]<>[C]<>=[O]<>": "[C]<1.0,2.0,3.0>[C]<-1.0,0.5,0.12>=[O]<0.1,0.2,0.3>",
        "[C]<>": "[C]<1.0,2.0,3.0abra>",
        "[C]<>=[C]<>[O]<>": "[C]<1.0,2.0>=[C]<1.0,2.0,3.0000001>[O]<0.1,0.2,0.3>",
    }
    monkeypatch.setattr(
        Script,
        "texts",
        {
            f"[CONFORMER]{key.replace('<>', holes)}[/CONFORMER]": f"[CONFORMER]{body}[/CONFORMER]"
            for key, body in script.items()
        },
    )
    asked = settings(tmp_path, processor="tiny:Script", repeats=1, warmup=0)
    runs = capture_loaded(asked, loaded("qwen"), inputs(tmp_path)).manifest.molecules
    assert [(run.valid, run.problem, run.malformed_blocks) for run in runs] == [
        (True, None, 0),
        (False, "1 of 1 blocks end in junk: <1.0,2.0,3.0abra>", 0),
        (False, "1 of 3 blocks malformed: <1.0,2.0>", 1),
    ]
    assert [(run.kinds.count("j"), run.kinds.count("l")) for run in runs] == [(0, 0), (1, 0), (0, 3)]


def result_of(*lengths: int, appended: tuple[tuple[int, ...], ...] | None = None) -> PassResult:
    rows = tuple(tuple(range(length)) for length in lengths)
    steps = max(lengths if appended is None else map(len, appended))
    return PassResult((BatchResult(rows, steps, None, appended, (len(rows),) * steps, None),), 1, 0, 0)


@pytest.mark.parametrize(
    ("asked", "lengths", "window"),
    [
        (None, (100, 90), (20, 39)),
        (None, (100, 40), (20, 39)),
        (None, (100, 30), (10, 29)),
        (None, (100, 15), (1, 14)),
        (None, (100, 1), (0, 0)),
        ((0, 3), (10, 5), (0, 3)),
        ((5, 99), (10, 5), (5, 9)),
    ],
)
def test_window(asked: tuple[int, int] | None, lengths: tuple[int, ...], window: tuple[int, int]) -> None:
    assert choose_window(asked, False, result_of(*lengths)) == Window(False, 0, *window)


def test_window_of_steps_that_made_several_tokens() -> None:
    result = result_of(9, 4, appended=((5, 1, 1, 2), (3, 1)))
    assert choose_window(None, False, result) == Window(False, 0, 1, 1)
    assert choose_window((1, 9), False, result) == Window(False, 0, 1, 3)
    assert [result.batches[0].written(row, 2) for row in (0, 1)] == [(0, 1, 2, 3, 4, 5), (0, 1, 2, 3)]


def test_window_after_the_end() -> None:
    with pytest.raises(UsageError, match="window 10:20 begins after the first batch's last step 9"):
        choose_window((10, 20), False, result_of(10, 5))


@pytest.mark.parametrize("stage", ["repeat", "profile", "write"])
def test_an_interrupt_leaves_nothing(tmp_path: Path, stage: str) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.stage == stage:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        capture_loaded(settings(tmp_path, processor="generic"), loaded("llama"), inputs(tmp_path), interrupt)
    assert [path.name for path in tmp_path.iterdir()] == ["in.smi"]
    assert "prepare_inputs_for_generation" not in loaded("llama").model.__dict__


def test_a_full_disk_is_one_line_and_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(capture_module, "write_trace", full)
    (tmp_path / "out.json").write_text("old")
    with pytest.raises(RunError, match=r"cannot write .*/out\.json: No space left on device"):
        capture_loaded(settings(tmp_path, repeats=1, max_new_tokens=3), loaded("llama"), inputs(tmp_path))
    assert (tmp_path / "out.json").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.smi", "out.json"]


def test_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "out.json").write_text("old")
    with pytest.raises(UsageError, match="already exists"):
        capture(settings(tmp_path))
    with pytest.raises(UsageError, match=r"needs 5 \+ 3,000 tokens \(prompt \+ answer\) of 2,048"):
        capture_loaded(settings(tmp_path, max_new_tokens=3000), loaded("llama"), inputs(tmp_path))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"output": Path("x.txt")}, "x.txt ends in neither .json nor .json.gz"),
        ({"attention": "fast"}, "no attention 'fast'"),
        ({"kv_cache": "none"}, "no kv-cache 'none'"),
        ({"dtype": "int8"}, "no dtype 'int8'"),
        ({"count": 0}, "-n 0 is below 1"),
        ({"batch_size": -1}, "--batch-size -1 is below 1"),
        ({"repeats": 0}, "--repeats 0 is below 1"),
        ({"warmup": -1}, "--warmup -1 is below 0"),
        ({"max_new_tokens": 0}, "--max-new-tokens 0 is below 1"),
        ({"window": (3, 2)}, "the window 3:2 is not FIRST:LAST with 0 <= FIRST <= LAST"),
        ({"window": (3, 4), "full": True}, "a window and a full recording exclude each other"),
        ({"model": ""}, "no model is named"),
        ({"processor": ""}, "no processor is named"),
        ({"threads": 1025}, "--threads 1025 is above 1024"),
    ],
)
def test_bad_settings(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        settings(Path(), **changes)
    assert str(caught.value) == message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sampling": "beam"}, "no sampling 'beam'"),
        ({"temperature": 0.0}, "--temperature 0.0 is not a number above 0"),
        ({"temperature": float("inf")}, "--temperature inf is not a number above 0"),
        ({"top_p": 1.5}, "--top-p 1.5 is not in (0, 1]"),
        ({"top_k": 0}, "--top-k 0 is below 1"),
        ({"seed": -1}, "--seed -1 is below 0"),
        ({"seed": 2**32}, "--seed 4294967296 is above 4294967295"),
    ],
)
def test_bad_decoding(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Decoding(**changes)
    assert str(caught.value) == message


def test_devices_and_models_that_are_not_there(tmp_path: Path) -> None:
    for name, message in (
        ("tpu", "no device 'tpu'"),
        ("cuda:x", "no device 'cuda:x'"),
        ("cpu:1", "no device 'cpu:1'"),
    ):
        with pytest.raises(UsageError, match=message):
            resolve_device(name)
    with pytest.raises(UsageError, match=r"no folder .*/none to load the model from"):
        load(str(tmp_path / "none"))
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(UsageError, match=r"the folder .*/folder holds no model: it has no config\.json$"):
        load(str(folder), tokenizer="llama")
    with pytest.raises(UsageError, match=r"holds no tokenizer: it has no tokenizer\.json, no tokenizer_config\.json, "):
        load("llama", tokenizer=str(folder))
    (folder / "config.json").write_text("{}")
    with pytest.raises(UsageError) as caught:
        load(str(folder))
    message = str(caught.value)
    assert message.startswith(f"cannot load the model or tokenizer '{folder}': ")
    assert (message[-1], "\n" in message) == (".", False)


def test_a_device_that_is_not_there_is_refused_before_loading(tmp_path: Path) -> None:
    seen: list[Progress] = []
    for device in ("tpu", "cuda:99"):
        with pytest.raises(UsageError, match=r"no device 'tpu'|'cuda:99' is not available|no GPU 99"):
            capture(settings(tmp_path, device=device), seen.append)
    assert seen == []


@pytest.mark.parametrize(
    ("cache", "message"),
    [
        (
            "offloaded",
            "kv-cache 'offloaded' lies in the host's memory, and so does any cache on the device 'cpu'",
        ),
        ("quantized", "kv-cache 'quantized' needs the package optimum-quanto, which is not installed"),
    ],
)
def test_a_cache_that_cannot_be_is_refused_before_loading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: str, message: str
) -> None:
    monkeypatch.setattr(generate_module, "is_optimum_quanto_available", lambda: False)
    seen: list[Progress] = []
    with pytest.raises(UsageError) as caught:
        capture(settings(tmp_path, device="cpu", kv_cache=cache), seen.append)
    assert (str(caught.value), seen) == (message, [])


@pytest.mark.parametrize("loop", [Loop(), Loop(drop_finished=True)], ids=["generate", "own"])
def test_a_temperature_that_leaves_nothing_to_sample(tmp_path: Path, loop: Loop) -> None:
    asked = settings(tmp_path, decoding=Decoding("sample", temperature=1e-300), loop=loop)
    with pytest.raises(RunError, match="nothing can be sampled: among a row's scores is a NaN or"):
        capture_loaded(asked, loaded("llama"), inputs(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["in.smi"]


def test_remarks_on_the_input_come_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Progress] = []
    monkeypatch.setattr(capture_module, "load", lambda *arguments: loaded("llama"))
    path = tmp_path / "in.smi"
    path.write_text("C\nxx\n")
    result = capture(settings(tmp_path, smiles=path, repeats=1, max_new_tokens=3), seen.append)
    assert seen[0].stage == "load"
    assert seen[0].notes == (
        f"{path}, line 2: RDKit cannot read the SMILES 'xx'; skipped",
        f"{path}: 1 readable molecule, 3 were asked for",
    )
    assert not any(state.notes for state in seen[1:])
    assert (result.notes, [item.line for item in result.manifest.skipped]) == ((), [2])


def test_a_model_from_a_folder(tmp_path: Path) -> None:
    source = loaded("llama")
    source.model.save_pretrained(tmp_path / "model")
    source.tokenizer.save_pretrained(tmp_path / "model")
    read = load(str(tmp_path / "model"), dtype="bfloat16", device="cpu", attention="eager")
    assert (str(read.model.dtype), read.model.config._attn_implementation) == ("torch.bfloat16", "eager")
    assert (read.default_processor, read.eos, read.notes, read.context) == ("generic", source.eos, (), 2048)
    assert read.table == source.table


def test_forced_runs_make_several_tokens_in_a_step_and_all_sums_hold(tmp_path: Path) -> None:
    loop = Loop(sort=True, forced_runs=True)
    asked = settings(tmp_path, processor="generic", loop=loop, window=(13, 15), repeats=1, warmup=0)
    manifest = capture_loaded(asked, loaded("llama"), inputs(tmp_path)).manifest
    assert [(run.sequence, run.batch, run.row) for run in manifest.molecules] == [(0, 0, 0), (1, 1, 0), (2, 0, 1)]
    assert manifest.steps_per_batch == [42, 14]
    assert manifest.rows_per_step == [[2] * 42, [1] * 14]
    first = manifest.molecules[0]
    # [CONFORMER][C]< and a choice; at the end of each block what stands between it and the next one.
    assert first.step_tokens == [4, *[1] * 12, 4, *[1] * 13, 5, *[1] * 13, 4]
    assert (manifest.generation.sorted, manifest.generation.forced_runs, manifest.generation.host_reads) == (
        True,
        True,
        0,
    )
    assert manifest.timings.signature_ns is None

    _, all_events = events(asked.output)
    steps = [event for event in of(all_events, "user_annotation") if ".step " in event["name"]]
    mine = [event for event in of(all_events, "molprof.token") if event["args"]["sequence"] == 0]
    assert [event["args"]["step"] for event in mine] == [13, 13, 13, 13, 14, 15]
    assert [event["args"]["position"] for event in mine] == list(range(16, 22))
    assert [event["args"]["token_id"] for event in mine] == first.token_ids[16:22]
    assert mine[0]["ts"] == steps[0]["ts"]
    assert sum(round(event["dur"] * 1000) for event in mine) == manifest.timings.profiled_steps_ns
    report = load_report(asked.output)
    # All but wall_time: so short a run may be out of any phase for more than 1 % of its time.
    assert {check.id for check in report.checks if not check.holds} <= {"wall_time"}
    assert report.run is not None
    # Sequence 2 has a bond token more in another place; both run for 42 steps, the lone atom's 14.
    assert (report.run.row_steps, report.run.idle_row_steps) == (2 * 42 + 14, 0)
    assert report.run.window.tokens == len(of(all_events, "molprof.token"))
    assert report.run.setup.loop == "sorted, forced runs"


def test_dropped_rows_are_no_row_steps(tmp_path: Path) -> None:
    asked = settings(tmp_path, processor="generic", loop=Loop(sort=False, drop_finished=True), repeats=1, warmup=0)
    manifest = capture_loaded(asked, loaded("llama"), inputs(tmp_path)).manifest
    assert manifest.rows_per_step == [[2] * 20 + [1] * 35, [1] * 55]
    report = load_report(asked.output)
    assert {check.id for check in report.checks if not check.holds} <= {"wall_time"}  # of so short a run
    assert report.run is not None
    assert (report.run.row_steps, report.run.idle_row_steps) == (130, 0)
    assert report.run.setup.loop == "input order, finished dropped"
