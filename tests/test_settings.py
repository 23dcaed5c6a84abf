"""Settings and manifests are read back as written, and mistakes are named."""

from __future__ import annotations

import copy
import functools
import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tiny_trace
from goldens import called

from molprof import api
from molprof.analysis.figures.run_model import Setup
from molprof.commands.capture import command
from molprof.common.errors import TraceError, UsageError
from molprof.common.manifest import from_json
from molprof.common.setting import rows, setting
from molprof.common.settings import SETTINGS, CaptureSettings

TRACE = Path(__file__).parent.parent / "traces/cpu-qwen.json.gz"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention": "fast"}, "no attention 'fast'"),
        ({"kv_cache": "none"}, "no kv-cache 'none'"),
        ({"dtype": "int8"}, "no dtype 'int8'"),
        ({"processor": ""}, "no processor is named"),
        ({"sampling": "beam"}, "no sampling 'beam'"),
        ({"count": 0}, "-n 0 is below 1"),
    ],
)
def test_a_wrong_setting(changes: dict[str, Any], message: str) -> None:
    """Of the API; what a command line says of its options is in `tests/goldens`."""
    with pytest.raises(UsageError) as caught:
        CaptureSettings(**{"model": "qwen", **changes})
    assert str(caught.value) == message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("asked", "parameters"),
    [
        ({"sampling": "greedy", "temperature": 0.5}, {}),
        ({"sampling": "sample", "temperature": 0.5}, {"temperature": 0.5}),
        ({"sampling": "top_p", "temperature": 0.5}, {"temperature": 0.5, "top_p": 0.9}),
        ({"sampling": "top_k", "temperature": 0.5}, {"temperature": 0.5, "top_k": 50}),
        ({"sampling": "top_k", "top_p": 0.8}, {"temperature": 1.0, "top_k": 50, "top_p": 0.8}),
        (
            {"sampling": "sample", "temperature": 0.5, "top_p": 0.8, "top_k": 9, "min_p": 0.05},
            {"temperature": 0.5, "top_k": 9, "top_p": 0.8, "min_p": 0.05},
        ),
    ],
)
def test_sampling_parameters_are_those_that_apply(asked: dict[str, Any], parameters: dict[str, Any]) -> None:
    assert CaptureSettings("qwen", **asked).sampling_parameters == parameters


def test_a_setting_is_declared_with_the_work_that_it_decides_and_the_meaning_of_its_row() -> None:
    @dataclass(frozen=True)
    class Plain(CaptureSettings):
        denormals: str = "keep"

    @dataclass(frozen=True)
    class Labelled(CaptureSettings):
        denormals: str = setting("keep", decides="forward", label="denormals")

    with pytest.raises(TypeError, match=r"Plain\.denormals is not declared with setting\(decides=\.\.\.\)"):
        rows(Plain)
    with pytest.raises(TypeError, match=r"Labelled\.denormals: a label requires a role"):
        rows(Labelled)
    with pytest.raises(TypeError, match="decides"):
        setting("keep")  # type: ignore[call-arg]


def test_every_setting_is_an_option_and_what_decides_work_is_in_reports() -> None:
    assert set(SETTINGS) <= {item.name for item in command.params}
    reported = {row.recorded for row in SETTINGS.values() if row.decides in ("forward", "tokens")}
    assert reported <= set(Setup.__struct_fields__)


def test_settings_of_torch_and_texts_are_rows_where_they_tell_something(tmp_path: Path) -> None:
    content = json.loads(gzip.decompress(TRACE.read_bytes()))
    (tmp_path / "plain.json").write_text(json.dumps(content))
    answer = "<mol>{atom}<{x} {y} {z}>...</mol>"
    content["molprof"]["settings"] |= {"tf32": True, "padding_multiple": 8, "kv_cache": "static"}
    content["molprof"]["settings"] |= {"max_cache_length": 99, "answer_format": answer}
    (tmp_path / "asked.json").write_text(json.dumps(content))
    shown = called(["compare", "plain.json", "asked.json", "--all", "--format", "markdown"], tmp_path)[1]
    cells = [line.strip("| ").split(" | ") for line in shown.splitlines() if line.startswith("| ")]
    both = {row[0].strip("*"): row[1:] for row in cells}
    assert both["TF32"] == ["off", "on"]
    assert both["prompt padding"] == ["to the longest", "to a multiple of 8"]
    assert both["KV cache length"] == ["as needed", "99"]
    assert both["answer format"][1].replace("\\", "") == answer
    assert "prompt format" not in both
    assert "TF32 (on, not off)" in shown
    alone = called(["report", "plain.json", "--all"], tmp_path)[1]
    assert not {"KV cache length", "answer format"} & {line.strip()[:15].strip() for line in alone.splitlines()}


@functools.cache
def manifest() -> Any:
    return json.loads(gzip.decompress(TRACE.read_bytes()))["molprof"]


def changed(path: tuple[Any, ...], value: Any) -> Any:
    """The manifest with another value at a path; DELETED: without."""
    made = copy.deepcopy(manifest())
    place = made
    for key in path[:-1]:
        place = place[key]
    if value is DELETED:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return made


DELETED = object()


def test_a_manifest_is_read_back() -> None:
    read = from_json(manifest())
    assert from_json(json.loads(json.dumps(read.to_json()))) == read
    assert from_json({**manifest(), "weather": "fine"}) == read, "unknown fields are left out"
    assert from_json(changed(("timings", "signature_ns"), DELETED)).timings.signature_ns is None


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("schema",), 3, "the trace was written with manifest schema 3; this molprof reads up to 2"),
        (("schema",), "1", "the trace's 'molprof' key holds no manifest (no integer 'schema')"),
        (("timings", "mark_ns"), "fast", "manifest: timings.mark_ns: expected `float`, got `str`"),
        (("timings", "mark_ns"), True, "manifest: timings.mark_ns: expected `float`, got `bool`"),
        (
            ("timings", "repeats", 1, "phases_ns", "forward"), "1",
            "manifest: timings.repeats[1].phases_ns[...]: expected `int`, got `str`",
        ),
        (("resolved", "layers"), True, "manifest: resolved.layers: expected `int | null`, got `bool`"),
        (("settings", "window"), [5], "manifest: settings.window: expected `array` of length 2, got 1"),
        (("settings", "attention"), "magic", "manifest: settings.attention: unknown value 'magic'"),
        (("molecules", 1, "kinds"), None, "manifest: molecules[1].kinds: expected `str`, got `null`"),
        (("molecules", 0, "text"), DELETED, "manifest: molecules[0]: missing field `text`"),
        (("skipped",), {}, "manifest: skipped: expected `array`, got `object`"),
        (("window",), [], "manifest: window: expected `object`, got `array`"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_manifest_is_named(path: tuple[Any, ...], value: Any, message: str) -> None:
    with pytest.raises(TraceError) as caught:
        from_json(changed(path, value))
    assert str(caught.value) == message


def test_schema_1_has_the_same_settings_in_other_places() -> None:
    old = tiny_trace.document()["molprof"]
    old["model"] |= {"tokenizer": "llama", "size": "layers=5", "weights": "random", "mlp": 8}
    old["generation"] |= {
        "sampling": "sample", "sampling_parameters": {"temperature": 0.5, "top_p": 0.8}, "cache": "static",
        "sorted": True, "forced_runs": True, "host_reads": 5, "template_threads": 3,
    }  # fmt: skip
    read = from_json(old)
    assert read.settings == CaptureSettings(
        "llama", size="layers=5", weights="random", processor="generic", batch_size=2, sampling="top_p",
        temperature=0.5, top_p=0.8, kv_cache="static", sort=True, forced_runs=True, dtype="bfloat16", device="cuda",
    )  # fmt: skip
    resolved = read.resolved
    assert (resolved.sorted, resolved.mlp, resolved.host_reads, resolved.template_threads) == (True, 8, 5, 3)
    assert (resolved.max_new_tokens, resolved.placeholder) == (3, "0.0000,0.0000,0.0000")
    assert (read.setting("seed"), read.setting("tokenizer"), read.setting("compile")) == (0, None, None)
    assert {"compile", "repeats", "top_k"} <= set(resolved.not_recorded)
    assert not {"seed", "tokenizer", "sort", "model"} & set(resolved.not_recorded)
    with pytest.raises(TraceError, match=r"^manifest: model: expected `object`, got `null`$"):
        from_json({**old, "model": None})


def test_steps_that_a_file_made_up_are_not_counted_to(tmp_path: Path) -> None:
    content = tiny_trace.document()
    content["molprof"]["steps_per_batch"] = [10**15]
    run = api.report(tiny_trace.write(tmp_path / "trace.json", content)).run
    assert run is not None
