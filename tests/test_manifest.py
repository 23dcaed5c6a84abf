"""The manifest: what is written is read back, and what is wrong is said by name."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from msgspec.structs import replace

from molprof.analysis.figures.build import _of_unfinished_rows
from molprof.common.errors import TraceError
from molprof.common.manifest import (
    Disagreement,
    Environment,
    Manifest,
    Repeat,
    Resolved,
    SequenceRun,
    Skipped,
    TemplateCounts,
    Timings,
    Window,
    from_json,
)
from molprof.common.settings import CaptureSettings

MANIFEST = Manifest(
    schema=2,
    created="2026-01-02T03:04:05+00:00",
    command=["molprof", "capture"],
    environment=Environment(
        None, None, None, None, None, "2.13.0", "5.23.0", None, "0.1", "3.11", "Linux", "CPU", 2, 1
    ),
    settings=CaptureSettings("qwen", processor="auto", window=(20, 39)),
    resolved=Resolved(
        "qwen3", 10, 4, 192, 6, 3, 151_936, 151_650, "float32", "cpu", 100, "qwen", {"allowed": ["0"]}, "0.0"
    ),
    timings=Timings([5], [Repeat(9, {"forward": 4}, [[4, 5]])], 90, None, 6, 5),
    window=Window(False, 0, 20, 39),
    steps_per_batch=[2],
    molecules=[
        SequenceRun(0, 0, 0, "C", "[SMILES]C[/SMILES]", 3, [1, 2], "ce", [-1, -1], "x", False, "cut", 0, 7,
                    TemplateCounts(3, 1, 1, [1])),
        SequenceRun(1, 0, 1, None, "hello", 1, [2], "e", [-1], "", None, None, 0, None, None),
    ],
    skipped=[Skipped(3, "xx", "RDKit cannot read the SMILES 'xx'")],
)  # fmt: skip


def raw() -> Any:
    return json.loads(json.dumps(MANIFEST.to_json()))


def test_round_trip() -> None:
    read = from_json(raw())
    assert read == replace(MANIFEST, timings=replace(MANIFEST.timings, mark_ns=90.0))


def test_optional_accounts_are_read_back() -> None:
    examined = Disagreement([1.0, 1e-9], [0, 4], "cf", "01")
    molecule = replace(MANIFEST.molecules[0], needed_per_block=[14, None], disagreement=examined)
    written = json.loads(json.dumps(replace(MANIFEST, molecules=[molecule]).to_json()))
    assert from_json(written).molecules == [molecule]


MODEL = {
    "name": "qwen", "family": "qwen3", "parameters": 10, "layers": 4, "hidden": 192, "heads": 6, "kv_heads": 3,
    "logits_width": 151_936, "tokenizer": "llama", "vocabulary": 151_650, "dtype": "float32", "device": "cpu",
    "attention": "eager",
}  # fmt: skip
GENERATION = {
    "processor": "generic", "processor_parameters": {"a": 1}, "placeholder": "0.0", "sampling": "sample",
    "sampling_parameters": {"temperature": 0.5, "top_p": 0.8}, "cache": "static", "batch_size": 4, "seed": 7,
    "max_new_tokens": 100,
}  # fmt: skip


def of_schema_1(model: dict[str, Any], generation: dict[str, Any]) -> Manifest:
    rest = {key: value for key, value in raw().items() if key not in ("settings", "resolved")}
    return from_json({**rest, "schema": 1, "model": MODEL | model, "generation": GENERATION | generation})


def test_schema_1_has_the_same_settings_in_other_places() -> None:
    added = {"sorted": True, "forced_runs": True, "drop_finished": False, "compile": "off", "generations": 2,
             "host_reads": 5, "template_threads": 3, "template_cache": True}  # fmt: skip
    manifest = of_schema_1({"size": "layers=5", "weights": "random", "mlp": 8}, added)
    assert manifest.settings == CaptureSettings(
        "qwen", size="layers=5", weights="random", tokenizer="llama", processor="generic", batch_size=4, generations=2,
        sampling="top_p", temperature=0.5, top_p=0.8, seed=7, attention="eager", kv_cache="static", sort=True,
        forced_runs=True, compile="off", dtype="float32", device="cpu", template_cache=True,
    )  # fmt: skip
    assert manifest.resolved == Resolved(
        "qwen3", 10, 4, 192, 6, 3, 151_936, 151_650, "float32", "cpu", 100, "generic", {"a": 1}, "0.0", sorted=True,
        weights="random", mlp=8, host_reads=5, template_threads=3, not_recorded=manifest.resolved.not_recorded,
    )  # fmt: skip
    assert manifest.setting("drop_finished") is False
    assert {"count", "top_k", "repeats", "window"} <= set(manifest.resolved.not_recorded)


def test_what_an_early_schema_1_lacks_is_not_recorded() -> None:
    manifest = of_schema_1({"tokenizer": "qwen"}, {"sampling": "greedy", "sampling_parameters": {}, "processor": None})
    assert (manifest.settings.tokenizer, manifest.settings.processor, manifest.settings.sampling) == (
        None,
        None,
        "greedy",
    )
    missing = {"forced_runs", "drop_finished", "compile", "size", "weights", "sort", "max_new_tokens"}
    assert missing <= set(manifest.resolved.not_recorded)
    assert [manifest.setting(name) for name in missing] == [None] * len(missing)
    assert not {"model", "tokenizer", "processor", "sampling", "seed"} & set(manifest.resolved.not_recorded)
    assert (manifest.resolved.sorted, manifest.resolved.weights) == (None, None)


def test_a_damaged_schema_1_is_refused() -> None:
    with pytest.raises(TraceError, match=r"^manifest: resolved\.layers: expected `int`, got `str`$"):
        of_schema_1({"layers": "4"}, {})
    with pytest.raises(TraceError, match=r"^manifest: model: expected `object`, got `null`$"):
        from_json(raw() | {"schema": 1})


def test_fields_that_came_later_may_be_absent() -> None:
    older = raw()
    del older["timings"]["signature_ns"], older["timings"]["profiled_wall_ns"]
    for molecule in older["molecules"]:
        del molecule["cut_blocks"], molecule["needed_per_block"], molecule["disagreement"]
    assert from_json(older).timings.signature_ns is None
    assert from_json(older).molecules == MANIFEST.molecules


def test_unknown_fields_are_left_out() -> None:
    newer = raw() | {"weather": "fine"}
    assert from_json(newer) == from_json(raw())


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("schema",), 3, "the trace was written with manifest schema 3; this molprof reads up to 2"),
        (("schema",), "1", "the trace's 'molprof' key holds no manifest (no integer 'schema')"),
        (("timings", "mark_ns"), "fast", "manifest: timings.mark_ns: expected `float`, got `str`"),
        (("resolved", "layers"), True, "manifest: resolved.layers: expected `int`, got `bool`"),
        (("settings", "window"), [5], "manifest: settings.window: expected `array` of length 2, got 1"),
        (("settings", "attention"), "magic", "manifest: no attention 'magic'"),
        (("molecules", 1, "kinds"), None, "manifest: molecules[1].kinds: expected `str`, got `null`"),
        (("skipped",), {}, "manifest: skipped: expected `array`, got `object`"),
        (("window",), [], "manifest: window: expected `object`, got `array`"),
    ],
)
def test_what_is_wrong_is_named(path: tuple[Any, ...], value: Any, message: str) -> None:
    broken = copy.deepcopy(raw())
    place = broken
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(TraceError) as caught:
        from_json(broken)
    assert str(caught.value) == message


def test_a_missing_field_is_named() -> None:
    broken = raw()
    del broken["molecules"][0]["text"], broken["molecules"][0]["row"]
    with pytest.raises(TraceError, match=r"^manifest: molecules\[0\]: missing field `row`$"):
        from_json(broken)


def test_steps_beyond_every_row_take_no_time() -> None:
    """A number that a file made up must not be counted to."""
    endless = replace(MANIFEST, steps_per_batch=[10**15] * len(MANIFEST.steps_per_batch))
    assert _of_unfinished_rows(endless) == sum(len(molecule.token_ids) for molecule in MANIFEST.molecules)
