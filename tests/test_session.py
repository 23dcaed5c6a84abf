"""Captures of several runs: interleaved timed passes, a trace of each run, and what a failure leaves."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from captures import inputs, settings
from conftest import Cli
from tiny import loaded

from molprof import api
from molprof.commands.capture import run_settings
from molprof.common.errors import MolprofError, UsageError
from molprof.common.manifest import Session
from molprof.profiler.capture import capture as capture_module
from molprof.profiler.capture.capture import capture_together, interleaved
from molprof.profiler.capture.passes import Progress, Report
from molprof.profiler.capture.run import CapturedRun
from molprof.profiler.project import Project
from molprof.profiler.recording.tracefile import OutputFile

OPTIONS = {"lp": None, "tokenizer": None, "disagreement": False, "processor_args": ()}


def made(folder: Path, report: Report = lambda progress: None, **processors: str | None) -> list[CapturedRun]:
    prompts = inputs(folder, 1)
    return [
        CapturedRun(
            settings(processor=processor, repeats=3, count=1, max_new_tokens=3),
            OutputFile(folder / f"{name}.json"),
            loaded("llama"),
            prompts,
            report,
            name,
        )
        for name, processor in processors.items()
    ]


def test_every_round_has_a_pass_of_every_run_in_an_order_of_the_seed(tmp_path: Path) -> None:
    seen: list[Progress] = []
    runs = made(tmp_path, seen.append, none=None, generic="generic", again=None)
    results = list(interleaved(runs, seed=5))
    assert [result.path.name for result in results] == ["none.json", "generic.json", "again.json"]
    begun = [(state.number, state.run) for state in seen if state.stage == "repeat" and not state.batch]
    order, expected = random.Random(5), []
    for number in (1, 2, 3):
        turn = ["none", "generic", "again"]
        order.shuffle(turn)
        expected += [(number, name) for name in turn]
    assert begun == expected

    sessions = [result.manifest.session for result in results]
    first = sessions[0]
    assert first is not None
    for session, name in zip(sessions, ("none", "generic", "again"), strict=True):
        places = [turn.index((number, name)) for number, turn in _rounds(begun)]
        others = [other for other in ("none", "generic", "again") if other != name]
        assert session == Session(first.id, 5, name, others, [0, 1, 2], places)
        run = api.report(tmp_path / f"{name}.json").run
        assert run is not None
    # The pass that counts is the warm-up, and the marks of runs that are compared cost all alike.
    assert {state.stage for state in seen} - {"machine"} == {"warmup", "count", "repeat", "profile", "write"}
    assert {state.run for state in seen if state.stage == "warmup"} == {"none", "again"}
    stages = [(state.stage, state.run) for state in seen if state.stage in ("repeat", "profile")]
    assert [stage for stage, _ in itertools.groupby(stages, lambda item: item[0])] == ["repeat", "profile"]


def _rounds(begun: list[tuple[int, str]]) -> Iterator[tuple[int, list[tuple[int, str]]]]:
    for number, turn in itertools.groupby(begun, lambda item: item[0]):
        yield number, list(turn)


def test_a_run_that_fails_does_not_take_the_others_with_it(tmp_path: Path) -> None:
    def fail(progress: Progress) -> None:
        seen.append(progress)
        if (progress.stage, progress.number, progress.run) == ("repeat", 2, "bad"):
            raise UsageError("no more", hint="less")

    seen: list[Progress] = []
    written = []
    results = interleaved(made(tmp_path, fail, good=None, bad="generic", fine=None))
    for result in itertools.islice(results, 2):
        written.append(result.path.name)
        assert result.manifest.session is not None
        assert "bad" not in result.manifest.session.others
        assert len(result.manifest.timings.repeats) == 3
    with pytest.raises(MolprofError, match=r"^bad: no more$") as caught:
        next(results)
    assert (caught.value.exit_code, caught.value.hint) == (2, "less")
    assert written == ["good.json", "fine.json"]
    assert [(state.run, state.notes) for state in seen if state.stage == "failed"] == [("bad", ("failed: no more",))]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fine.json", "good.json", "in.smi"]


def test_an_interrupt_keeps_the_traces_that_are_whole(tmp_path: Path) -> None:
    def interrupt(progress: Progress) -> None:
        if (progress.stage, progress.run) == ("profile", "second"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(interleaved(made(tmp_path, interrupt, first=None, second=None)))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first.json", "in.smi"]
    assert api.report(tmp_path / "first.json").run is not None


def test_runs_of_a_model_load_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = []

    def load(asked: object, report: object) -> object:
        names.append(asked.model)  # type: ignore[attr-defined]
        return loaded(names[-1])

    monkeypatch.setattr(capture_module, "load", load)
    base = settings(smiles=str(tmp_path / "in.smi"), repeats=1, count=1, max_new_tokens=3)
    inputs(tmp_path)
    asked = [
        (
            dataclasses.replace(base, model=model, processor=processor),
            OutputFile(tmp_path / f"{model}-{processor}.json"),
        )
        for model in ("llama", "qwen")
        for processor in (None, "generic")
    ]
    found = [result.manifest for result in capture_together(asked)]
    assert names == ["llama", "qwen"]
    assert [(item.settings.model, item.resolved.processor) for item in found] == [
        ("llama", None), ("llama", "generic"), ("qwen", None), ("qwen", "generic"),
    ]  # fmt: skip
    assert len({item.session.id for item in found if item.session is not None}) == 1


def test_each_run_gets_the_static_cache_of_its_own_length(tmp_path: Path) -> None:
    prompts, model = inputs(tmp_path, 1), loaded("llama")
    before = model.model.__dict__.get("_previous_max_cache_length")  # other tests use this model too
    runs = [
        CapturedRun(
            settings(kv_cache="static", compile="off", repeats=2, count=1, max_new_tokens=bound),
            OutputFile(tmp_path / f"{bound}.json"), model, prompts, name=str(bound),
        )
        for bound in (40, 3)
    ]  # fmt: skip
    assert len(list(interleaved(runs))) == 2
    lengths = [run.passes._left["_previous_max_cache_length"] for run in runs]
    assert lengths[0] - lengths[1] == 37
    assert model.model.__dict__.get("_previous_max_cache_length") == before


@pytest.mark.parametrize(
    ("model", "processor", "names"),
    [
        ("qwen", None, ["qwen.json.gz"]),
        ("qwen", "none,none", ["qwen.json.gz", "qwen-2.json.gz"]),
        ("qwen,llama", "none,generic", ["qwen", "qwen-generic", "llama", "llama-generic"]),
        ("qwen", "none, my.own:make", ["qwen", "qwen-my.own-make"]),
        ("qwen", "lp,qwen", ["qwen-generic", "qwen-qwen"]),
    ],
)
def test_runs_are_named_after_model_and_processor(model: str, processor: str | None, names: list[str]) -> None:
    found = run_settings(Project(), model=model, processor=processor, **OPTIONS)
    assert [name.removesuffix(".json.gz") for name in found] == [name.removesuffix(".json.gz") for name in names]


def test_lp_beside_a_named_processor_is_no_contradiction() -> None:
    for options in ({**OPTIONS, "lp": True}, OPTIONS):
        (found,) = run_settings(Project(), model="qwen", processor="grammar", **options).values()
        assert found.processor == "grammar"
    (found,) = run_settings(Project(), model="llama", processor=None, **{**OPTIONS, "lp": True}).values()
    assert found.processor == "generic"
    with pytest.raises(click.UsageError, match="--no-lp and --processor grammar contradict each other"):
        run_settings(Project(), model="qwen", processor="grammar", **{**OPTIONS, "lp": False})


def test_disagreement_is_for_the_runs_that_have_a_processor() -> None:
    options = {**OPTIONS, "disagreement": True}
    found = run_settings(Project(), model="qwen", processor="none,generic", **options)
    assert [item.disagreement for item in found.values()] == [False, True]
    with pytest.raises(UsageError, match="this run has none"):
        run_settings(Project(), model="qwen", processor="none", **options)


def test_the_command_writes_a_trace_of_each_run_into_a_folder(molprof: Cli, tmp_path: Path) -> None:
    options = [
        "capture",
        "--model",
        "llama",
        "--processor",
        "none,generic,none",
        "-n",
        "1",
        "--max-new-tokens",
        "4",
        "--repeats",
        "2",
    ]
    result = molprof(*options, "-o", "runs/here")
    assert result.returncode == 0, result.stderr
    names = ["llama.json.gz", "llama-generic.json.gz", "llama-2.json.gz"]
    assert sorted(path.name for path in (tmp_path / "runs/here").iterdir()) == sorted(names)
    lines = result.stderr.splitlines()
    assert lines.count("loading the model") == 1
    for name in names:
        run = name.removesuffix(".json.gz")
        assert sum(line.startswith(f"{run}: timed pass ") for line in lines) == 2
        assert any(line.startswith(f"{run}: wrote runs/here/{name} (") for line in lines)
    assert lines[-1] == f"next: molprof compare {' '.join(f'runs/here/{name}' for name in names)}"

    again = molprof(*options, "-o", "runs/here")
    assert (again.returncode, again.stderr.splitlines()[0]) == (
        2, "molprof: error: runs/here/llama.json.gz already exists",
    )  # fmt: skip
    file = molprof(*options, "-o", "runs.json")
    assert (file.returncode, file.stderr.splitlines()[0]) == (2, "molprof: error: runs.json is one file, for 3 runs")
