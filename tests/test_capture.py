"""Whole captures of random tiny models: what is in the trace adds up."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from captures import captured, events, of, settings
from tiny import Script, loaded

from molprof import api
from molprof.common.manifest import PHASES, Window, from_json
from molprof.common.values import bytes_text
from molprof.profiler.capture.passes import Progress
from molprof.profiler.capture.run import CaptureResult
from molprof.profiler.recording.tracefile import TOKENS_PID


def test_constrained_window(tmp_path: Path) -> None:
    seen: list[Progress] = []
    result = captured(tmp_path / "out.json.gz", settings(processor="auto"), report=seen.append)
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
    assert (manifest.settings.processor, manifest.resolved.processor) == ("auto", "generic")
    assert manifest.resolved.placeholder == "0.0000,0.0000,0.0000"
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
    assert list(dict.fromkeys(item.stage for item in seen)) == ["count", "repeat", "unmarked", "profile", "write"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.smi", "out.json.gz"]


def test_masked_logits_are_those_of_every_row_step(tmp_path: Path) -> None:
    result = captured(tmp_path / "out.json", settings(processor="generic"))
    width, steps = 128_256, 55
    for run in result.manifest.molecules:
        template = run.template
        assert template is not None
        inside = template.free - template.blocks
        # 1,399 at a FREE position, 1,433 at the last of a block, all but one where a token is forced.
        forced = (steps - template.free) * (width - 1)
        assert run.masked_logits == forced + inside * 1399 + template.blocks * 1433


def test_unconstrained_full(tmp_path: Path) -> None:
    asked = settings(full=True, max_new_tokens=5, repeats=1, warmup=0)
    result = captured(tmp_path / "out.json", asked)
    _, all_events = events(result.path)
    manifest = result.manifest
    assert manifest.resolved.processor is manifest.resolved.placeholder is None
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
    asked = settings(
        processor="generic", sampling="top_k", temperature=0.8, top_k=5, seed=9, max_new_tokens=8, repeats=1, warmup=0
    )
    result = captured(tmp_path / "out.json", asked)
    assert result.notes == ()  # no pass differs
    assert result.manifest.settings == asked
    again = captured(tmp_path / "out.json", asked)
    other = dataclasses.replace(asked, seed=8)
    assert texts(again) == texts(result)
    assert texts(captured(tmp_path / "out.json", other)) != texts(result)


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
    asked = settings(processor="tiny:Script", repeats=1, warmup=0)
    runs = captured(tmp_path / "out.json", asked, model=loaded("qwen")).manifest.molecules
    assert [(run.valid, run.problem, run.malformed_blocks) for run in runs] == [
        (True, None, 0),
        (False, "1 of 1 blocks end in junk: <1.0,2.0,3.0abra>", 0),
        (False, "1 of 3 blocks malformed: <1.0,2.0>", 1),
    ]
    assert [(run.kinds.count("j"), run.kinds.count("l")) for run in runs] == [(0, 0), (1, 0), (0, 3)]


def test_forced_runs_make_several_tokens_in_a_step_and_all_sums_hold(tmp_path: Path) -> None:
    asked = settings(processor="generic", sort=True, forced_runs=True, window=(13, 15), repeats=1, warmup=0)
    manifest = captured(tmp_path / "out.json", asked).manifest
    assert [(run.sequence, run.batch, run.row) for run in manifest.molecules] == [(0, 0, 0), (1, 1, 0), (2, 0, 1)]
    assert manifest.steps_per_batch == [42, 14]
    assert manifest.rows_per_step == [[2] * 42, [1] * 14]
    first = manifest.molecules[0]
    # [CONFORMER][C]< and a choice; at the end of each block what stands between it and the next one.
    assert first.step_tokens == [4, *[1] * 12, 4, *[1] * 13, 5, *[1] * 13, 4]
    assert (manifest.resolved.sorted, manifest.settings.forced_runs, manifest.resolved.host_reads) == (
        True,
        True,
        0,
    )
    assert manifest.timings.signature_ns is None

    _, all_events = events(tmp_path / "out.json")
    steps = [event for event in of(all_events, "user_annotation") if ".step " in event["name"]]
    mine = [event for event in of(all_events, "molprof.token") if event["args"]["sequence"] == 0]
    assert [event["args"]["step"] for event in mine] == [13, 13, 13, 13, 14, 15]
    assert [event["args"]["position"] for event in mine] == list(range(16, 22))
    assert [event["args"]["token_id"] for event in mine] == first.token_ids[16:22]
    assert mine[0]["ts"] == steps[0]["ts"]
    assert sum(round(event["dur"] * 1000) for event in mine) == manifest.timings.profiled_steps_ns
    report = api.report(tmp_path / "out.json")
    # All but wall_time: so short a run may be out of any phase for more than 1 % of its time.
    assert {check.id for check in report.checks if not check.holds} <= {"wall_time"}
    assert report.run is not None
    # Sequence 2 has a bond token more in another place; both run for 42 steps, the lone atom's 14.
    assert (report.run.row_steps, report.run.idle_row_steps) == (2 * 42 + 14, 0)
    assert report.run.window.tokens == len(of(all_events, "molprof.token"))
    assert report.run.setup.loop == "sorted, forced runs"


def test_dropped_rows_are_no_row_steps(tmp_path: Path) -> None:
    asked = settings(processor="generic", drop_finished=True, repeats=1, warmup=0)
    manifest = captured(tmp_path / "out.json", asked).manifest
    assert manifest.rows_per_step == [[2] * 20 + [1] * 35, [1] * 55]
    report = api.report(tmp_path / "out.json")
    assert {check.id for check in report.checks if not check.holds} <= {"wall_time"}  # of so short a run
    assert report.run is not None
    assert (report.run.row_steps, report.run.idle_row_steps) == (130, 0)
    assert report.run.setup.loop == "input order, finished dropped"


def test_the_size_of_a_static_cache_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Progress] = []
    asked = settings(processor="generic", kv_cache="static", repeats=1, warmup=0, max_new_tokens=8)
    config = loaded("llama").model.config
    for free in (1 << 40, 1000):
        monkeypatch.setattr("molprof.profiler.capture.account.free_bytes", lambda device, free=free: free)
        captured(tmp_path / "out.json", asked, report=seen.append)
    first, second = [state.notes for state in seen if any("static KV cache" in note for note in state.notes)]
    rows, columns = map(int, re.findall(r"\((\d+) rows x (\d+) tokens\)", first[0])[0])
    size = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * rows * columns * 4
    assert first == (f"static KV cache: {bytes_text(size)} ({rows} rows x {columns} tokens)",)
    assert "needs much of the free memory (1.00 kB)" in second[1]
