"""Settings of a capture: values that cannot be, and what excludes each other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from captures import settings

from molprof.analysis.figures.run_model import Setup
from molprof.commands.capture import command
from molprof.common.errors import UsageError
from molprof.common.settings import SETTINGS, CaptureSettings, rows, setting
from molprof.profiler.recording.tracefile import OutputFile


@pytest.mark.parametrize(
    ("changes", "message"),
    [
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
        ({"max_cache_length": 99}, "--max-cache-length is for a cache of fixed shape, not 'dynamic'"),
        ({"padding_multiple": 0}, "--pad-multiple 0 is below 1"),
        (
            {"padding_multiple": 2, "drop_finished": True},
            "forced runs and dropped rows give prompts no columns of padding",
        ),
        ({"threads": 1025}, "--threads 1025 is above 1024"),
        ({"template_threads": 1025}, "--template-threads 1025 is above 1024"),
        ({"window": (3, 10**9)}, "--window 1000000000 is above 1000000"),
    ],
)
def test_bad_settings(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        settings(**changes)
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
        settings(**changes)
    assert str(caught.value) == message


def test_a_trace_has_a_known_ending(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"x\.txt ends in none of \.json, \.json\.gz"):
        OutputFile(tmp_path / "x.txt").check()


@pytest.mark.parametrize(
    ("sampling", "parameters"),
    [
        ("greedy", {}),
        ("sample", {"temperature": 0.5}),
        ("top_p", {"temperature": 0.5, "top_p": 0.9}),
        ("top_k", {"temperature": 0.5, "top_k": 50}),
    ],
)
def test_sampling_parameters_are_those_that_apply(sampling: str, parameters: dict[str, Any]) -> None:
    assert CaptureSettings("qwen", sampling=sampling, temperature=0.5).sampling_parameters == parameters


def test_sampling_parameters_combine() -> None:
    asked = CaptureSettings("qwen", sampling="sample", temperature=0.5, top_p=0.8, top_k=9, min_p=0.05)
    assert asked.sampling_parameters == {"temperature": 0.5, "top_k": 9, "top_p": 0.8, "min_p": 0.05}
    both = CaptureSettings("qwen", sampling="top_k", top_p=0.8)
    assert both.sampling_parameters == {"temperature": 1.0, "top_k": 50, "top_p": 0.8}


def test_a_setting_is_declared_with_the_work_that_it_decides() -> None:
    @dataclass(frozen=True)
    class More(CaptureSettings):
        denormals: str = "keep"

    with pytest.raises(TypeError, match=r"More\.denormals is not declared with setting\(decides=\.\.\.\)"):
        rows(More)
    with pytest.raises(TypeError, match=r"More\.denormals"):
        More("qwen")
    with pytest.raises(TypeError, match="decides"):
        setting("keep")  # type: ignore[call-arg]


def test_a_row_of_a_report_says_what_a_difference_in_it_means() -> None:
    @dataclass(frozen=True)
    class More(CaptureSettings):
        denormals: str = setting("keep", decides="forward", label="denormals")

    with pytest.raises(TypeError, match=r"More\.denormals: a label requires a role"):
        rows(More)


def test_a_setting_declared_again_keeps_its_row() -> None:
    @dataclass(frozen=True)
    class Small(CaptureSettings):
        batch_size: int = 8

    assert rows(Small)["batch_size"].default == 8
    assert rows(Small)["batch_size"].help == SETTINGS["batch_size"].help
    with pytest.raises(UsageError, match="--batch-size 0 is below 1"):
        Small("qwen", batch_size=0)


def test_every_setting_is_an_option_and_what_decides_work_is_in_reports() -> None:
    assert set(SETTINGS) <= {item.name for item in command.params}
    reported = {row.recorded for row in SETTINGS.values() if row.decides in ("forward", "tokens")}
    assert reported <= set(Setup.__struct_fields__)
