"""Captures of several runs interleave timed passes, write a trace of each run, and handle failures."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
from captures import inputs, settings
from goldens import called
from msgspec import UNSET
from msgspec.structs import replace
from tiny import loaded

from molprof import api
from molprof.commands.capture import run_settings
from molprof.common.errors import MolprofError, UsageError
from molprof.common.manifest import Session
from molprof.profiler.capture.capture import interleaved
from molprof.profiler.capture.passes import CaptureProgress, Report
from molprof.profiler.capture.run import CapturedRun
from molprof.profiler.project import Project
from molprof.profiler.recording.tracefile import OutputFile

OPTIONS = {"lp": None, "tokenizer": None, "disagreement": False, "processor_args": ()}


def made(
    folder: Path, report: Report = lambda progress: None, bounds: tuple[int, ...] = (3, 3, 3), **processors: str | None
) -> list[CapturedRun]:
    prompts = inputs(folder, 1)
    caches = {"kv_cache": "static", "compile": "off"} if len(set(bounds)) > 1 else {}
    return [
        CapturedRun(
            settings(processor=processor, repeats=3, count=1, max_new_tokens=bound, **caches),
            OutputFile(folder / f"{name}.json"), loaded("llama"), prompts, report, name,
        )
        for (name, processor), bound in zip(processors.items(), bounds, strict=False)
    ]  # fmt: skip


def test_every_round_has_a_pass_of_every_run_in_an_order_of_the_seed(tmp_path: Path) -> None:
    seen: list[CaptureProgress] = []
    names = ["none", "generic", "again"]
    results = list(interleaved(made(tmp_path, seen.append, none=None, generic="generic", again=None), seed=5))
    assert [result.path.name for result in results] == ["none.json", "generic.json", "again.json"]
    begun = [(state.number, state.run) for state in seen if state.stage == "repeat" and not state.batch]
    order, turns = random.Random(5), [list(names) for _ in range(3)]
    for turn in turns:
        order.shuffle(turn)
    assert begun == [(number, name) for number, turn in enumerate(turns, 1) for name in turn]
    first = results[0].manifest.session
    assert first is not None
    for result, name in zip(results, names, strict=True):
        others = [other for other in names if other != name]
        places = [turn.index(name) for turn in turns]
        session = result.manifest.session
        assert session is not None
        assert replace(session, measured=UNSET) == Session(first.id, 5, name, others, [0, 1, 2], places)
        assert api.report(result.path).run is not None
    # The pass that counts is the warm-up, and the marks of runs that are compared cost all alike.
    assert {state.stage for state in seen} - {"machine"} == {"warmup", "count", "repeat", "profile", "write"}
    assert {state.run for state in seen if state.stage == "warmup"} == {"none", "again"}
    stages = [state.stage for state in seen if state.stage in ("repeat", "profile")]
    assert [stage for stage, _ in itertools.groupby(stages)] == ["repeat", "profile"]


def test_a_run_that_fails_does_not_take_the_others_with_it(tmp_path: Path) -> None:
    def fail(progress: CaptureProgress) -> None:
        seen.append(progress)
        if (progress.stage, progress.number, progress.run) == ("repeat", 2, "bad"):
            raise UsageError("no more", hint="less")

    seen: list[CaptureProgress] = []
    written = []
    results = interleaved(made(tmp_path, fail, good=None, bad="generic", fine=None))
    for result in itertools.islice(results, 2):
        written.append(result.path.name)
        assert result.manifest.session is not None
        assert "bad" not in result.manifest.session.others
        assert len(result.manifest.timings.repeats) == 3
    with pytest.raises(MolprofError, match=r"(?m)^bad: no more$") as caught:
        next(results)
    assert (caught.value.exit_code, caught.value.hint) == (2, "less")
    assert written == ["good.json", "fine.json"]
    assert [(state.run, state.notes) for state in seen if state.stage == "failed"] == [("bad", ("failed: no more",))]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fine.json", "good.json", "in.smi"]


def test_an_interrupt_keeps_the_traces_that_are_whole(tmp_path: Path) -> None:
    def interrupt(progress: CaptureProgress) -> None:
        if (progress.stage, progress.run) == ("profile", "second"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(interleaved(made(tmp_path, interrupt, first=None, second=None)))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first.json", "in.smi"]
    assert api.report(tmp_path / "first.json").run is not None


def test_each_run_gets_the_static_cache_of_its_own_length(tmp_path: Path) -> None:
    lengths: dict[str, set[int]] = {"long": set(), "short": set()}

    def look(progress: CaptureProgress) -> None:
        if progress.stage == "repeat" and not progress.batch:
            lengths[progress.run].add(vars(loaded("llama").model).get("_previous_max_cache_length", 0))

    before = loaded("llama").model.__dict__.get("_previous_max_cache_length")  # other tests use this model too
    assert len(list(interleaved(made(tmp_path, look, (40, 3), long=None, short=None)))) == 2
    assert loaded("llama").model.__dict__.get("_previous_max_cache_length") == before
    assert lengths == {"long": {before or 0}, "short": {before or 0}}  # between passes the model has its own


@pytest.mark.parametrize(
    ("model", "processor", "more", "names"),
    [
        ("qwen", None, {}, {"qwen": None}),
        ("qwen", "none,none", {}, {"qwen": None, "qwen-2": None}),
        ("qwen,llama", "none,generic", {"disagreement": True},
         {"qwen": None, "qwen-generic": "generic", "llama": None, "llama-generic": "generic"}),
        ("qwen", "none, my.own:make", {}, {"qwen": None, "qwen-my.own-make": "my.own:make"}),
        ("qwen", "lp,qwen", {}, {"qwen-generic": "generic", "qwen-qwen": "qwen"}),
        ("qwen", "grammar", {"lp": True}, {"qwen-grammar": "grammar"}),
        ("llama", None, {"lp": True}, {"llama-generic": "generic"}),
    ],
)  # fmt: skip
def test_runs_are_named_after_model_and_processor(model: str, processor: str | None, more: dict, names: dict) -> None:
    found = run_settings(Project(), model=model, processor=processor, **{**OPTIONS, **more})
    assert {name.removesuffix(".json.gz"): item.processor for name, item in found.items()} == names
    asked = more.get("disagreement", False)  # which is between a model and a processor
    assert all(item.disagreement == (asked and item.processor is not None) for item in found.values())


def test_the_command_writes_a_trace_of_each_run_into_a_folder(tmp_path: Path) -> None:
    line = "capture --model llama --processor none,generic,none -n 1 --max-new-tokens 4 --repeats 2 -o runs/here"
    code, _, err = called(line.split(), tmp_path)
    assert code == 0, err
    names = ["llama", "llama-generic", "llama-2"]
    assert {path.name for path in (tmp_path / "runs/here").iterdir()} == {f"{name}.json.gz" for name in names}
    lines = err.splitlines()
    assert lines.count("loading the model") == 1
    for name in names:
        assert sum(line.startswith(f"{name}: timed pass ") for line in lines) == 2
        assert any(line.startswith(f"{name}: wrote runs/here/{name}.json.gz (") for line in lines)
    assert lines[-1] == f"next: molprof compare {' '.join(f'runs/here/{name}.json.gz' for name in names)}"
