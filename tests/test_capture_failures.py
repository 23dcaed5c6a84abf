"""Captures that fail or are refused: one line, and nothing is left behind."""

from __future__ import annotations

import functools
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from captures import captured, captured_to, inputs, settings
from tiny import loaded

from molprof import api
from molprof.common.errors import RunError, TakenError, UsageError
from molprof.profiler.capture import capture as capture_module
from molprof.profiler.capture import run as run_module
from molprof.profiler.capture.capture import capture
from molprof.profiler.capture.passes import Progress
from molprof.profiler.recording.tracefile import OutputFile


@pytest.mark.parametrize("stage", ["repeat", "profile", "write"])
def test_an_interrupt_leaves_nothing(tmp_path: Path, stage: str) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.stage == stage:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        captured(tmp_path / "out.json", settings(processor="generic"), report=interrupt)
    assert [path.name for path in tmp_path.iterdir()] == ["in.smi"]
    assert "prepare_inputs_for_generation" not in loaded("llama").model.__dict__


def test_a_full_disk_is_one_line_and_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> Iterator[str]:
        yield "{}"
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run_module, "token_events", full)
    (tmp_path / "out.json").write_text("old")
    with pytest.raises(RunError, match=r"cannot write .*/out\.json: No space left on device"):
        captured(tmp_path / "out.json", settings(repeats=1, max_new_tokens=3))
    assert (tmp_path / "out.json").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.smi", "out.json"]


def test_a_disk_that_is_full_while_torch_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # bytecode written under the limit may be cut
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))  # Python ignores the signal
    try:
        with pytest.raises(RunError, match=r"^cannot write .*/out\.json: File too large$"):
            captured(tmp_path / "out.json", settings(repeats=1, max_new_tokens=3))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["in.smi"]


def test_a_capture_that_is_killed_in_its_timed_passes_leaves_nothing(tmp_path: Path) -> None:
    seen = {}

    def look(progress: Progress) -> None:
        seen[progress.stage] = sorted(path.name for path in tmp_path.iterdir())

    captured(tmp_path / "out.json", settings(repeats=1, max_new_tokens=3), report=look)
    assert [seen[stage] for stage in ("warmup", "repeat", "unmarked")] == [["in.smi"]] * 3


@pytest.mark.parametrize("chosen", [True, False])
def test_a_trace_that_another_capture_wrote_meanwhile_stays(tmp_path: Path, chosen: bool) -> None:
    def write(progress: Progress) -> None:
        if progress.stage == "write":
            (tmp_path / "out.json").write_text("theirs")

    output = OutputFile(tmp_path / "out.json", chosen=chosen)
    asked = settings(repeats=1, max_new_tokens=3)
    run = functools.partial(captured_to, output, asked, inputs(tmp_path), loaded("llama"), write)
    if chosen:
        assert run().path == tmp_path / "out-2.json"
    else:
        with pytest.raises(TakenError, match=r"meanwhile; this result is kept: .*/out-2\.json"):
            run()
    assert (tmp_path / "out.json").read_text() == "theirs"
    assert api.report(tmp_path / "out-2.json").run is not None


def test_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "out.json").write_text("old")
    with pytest.raises(UsageError, match="already exists"):
        capture(settings(), OutputFile(tmp_path / "out.json"))
    with pytest.raises(UsageError, match=r"needs 5 \+ 3,000 tokens \(prompt \+ answer\) of 2,048"):
        captured(tmp_path / "out.json", settings(max_new_tokens=3000))


def test_a_device_that_is_not_there_is_refused_before_loading(tmp_path: Path) -> None:
    seen: list[Progress] = []
    for device in ("tpu", "cuda:99"):
        with pytest.raises(UsageError, match=r"no device 'tpu'|'cuda:99' is not available|no GPU 99"):
            capture(settings(device=device), OutputFile(tmp_path / "out.json"), seen.append)
    assert seen == []


@pytest.mark.parametrize(
    ("cache", "message"),
    [
        (
            "offloaded",
            "kv-cache 'offloaded' requires a GPU: without one, every cache is in host memory",
        ),
        ("quantized", "kv-cache 'quantized' needs the package optimum-quanto, which is not installed"),
    ],
)
def test_a_cache_that_cannot_be_is_refused_before_loading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: str, message: str
) -> None:
    monkeypatch.setattr(capture_module, "is_optimum_quanto_available", lambda: False)
    seen: list[Progress] = []
    with pytest.raises(UsageError) as caught:
        capture(settings(device="cpu", kv_cache=cache), OutputFile(tmp_path / "out.json"), seen.append)
    assert (str(caught.value), seen) == (message, [])


@pytest.mark.parametrize("drop", [False, True], ids=["generate", "own"])
def test_a_temperature_that_leaves_nothing_to_sample(tmp_path: Path, drop: bool) -> None:
    asked = settings(sampling="sample", temperature=1e-300, drop_finished=drop)
    with pytest.raises(RunError, match="no token can be sampled: the scores of a row contain NaN"):
        captured(tmp_path / "out.json", asked)
    assert [path.name for path in tmp_path.iterdir()] == ["in.smi"]


def test_remarks_on_the_input_come_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Progress] = []
    monkeypatch.setattr(capture_module, "load", lambda *arguments: loaded("llama"))
    path = tmp_path / "in.smi"
    path.write_text("C\nxx\n")
    result = capture(
        settings(smiles=str(path), repeats=1, max_new_tokens=3), OutputFile(tmp_path / "out.json"), seen.append
    )
    assert seen[0].stage == "load"
    assert seen[0].notes == (
        f"{path}, line 2: RDKit cannot read the SMILES 'xx'; skipped",
        f"{path}: 1 readable molecule, 3 were asked for",
    )
    assert not any(state.notes for state in seen[1:])
    assert (result.notes, [item.line for item in result.manifest.skipped]) == ((), [2])
