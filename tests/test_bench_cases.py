"""Cases, grids and what is unsupported where: no torch needed, no process started."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from molprof.common.errors import UsageError
from molprof.common.settings import Setting, rows
from molprof.profiler.bench.cases import Case, GenerateCase, SdpaCase, case_id, from_json, to_json
from molprof.profiler.bench.facts import Facts, unsupported
from molprof.profiler.bench.grids import BENCHMARKS, Benchmark, generation_cases, read_shape, sdpa_cases, values_of

CPU = Facts("cpu", None, True, (), {})
H100 = Facts("cuda:0", (9, 0), True, ("flash_attn", "flash_attn_interface", "triton", "optimum.quanto"), {})
OLD = Facts("cuda:0", (7, 0), False, (), {})
RUN = GenerateCase(model="qwen")
KERNEL = SdpaCase("auto", 4, 16, 8, 128, 128, 64)


@pytest.mark.parametrize("case", [RUN, replace(RUN, processor="qwen", tf32=True, count=3), KERNEL], ids=["a", "b", "c"])
def test_a_case_survives_json(case: Case) -> None:
    again = from_json(json.loads(json.dumps(to_json(case))))
    assert again == case
    assert case_id(again) == case_id(case)


def test_ids_stand_for_all_settings() -> None:
    assert case_id(RUN) == case_id(GenerateCase(model="qwen"))
    assert len({case_id(RUN), case_id(replace(RUN, passes=2)), case_id(replace(RUN, threads=1))}) == 3
    assert case_id(KERNEL) == "44c1bcd91f50"


@pytest.mark.parametrize(
    "row", [row for row in rows(GenerateCase).values() if row.axis is not None], ids=lambda row: row.name
)
def test_values_of_an_axis_have_labels_of_their_own(row: Setting) -> None:
    case = replace(RUN, kv_cache="static")
    other = {str: "other", bool: not row.default, int: 7, float: 0.5}[row.type]
    if row.accepted is not None:
        other = next(value for value in row.accepted if value not in (row.default, "static", "off"))
    assert replace(case, **{row.name: other}).label() != case.label()


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({}, "no kind of case None"),
        ({"kind": "generate", "model": "qwen", "speed": 9}, "no setting 'speed'"),
        ({"kind": "generate"}, "not a case of kind 'generate': "),
        ({"kind": "generate", "model": "qwen", "batch_size": 0}, "--batch-size 0 is below 1"),
        ({"kind": "generate", "model": "qwen", "batch_size": "8"}, "not a case of kind 'generate': "),
        ({"kind": "generate", "model": "qwen", "attention": "magic"}, "no attention 'magic'"),
        ({**to_json(KERNEL), "kv_heads": 5}, "16 heads cannot share 5 KV heads"),
        ({**to_json(KERNEL), "mask": "causal", "queries": 1}, "has no agreed meaning"),
    ],
)
def test_what_is_no_case_is_refused(raw: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        from_json(raw)


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
        (replace(RUN, kv_cache="offloaded"), H100, None),
        (replace(RUN, kv_cache="quantized"), CPU, "optimum-quanto"),
        (replace(RUN, kv_cache="quantized"), H100, None),
        (replace(RUN, kv_cache="static", compile="default"), OLD, "requires the package triton"),
        (replace(RUN, kv_cache="static", compile="eager"), OLD, None),
        (replace(RUN, tf32=True), CPU, "compute capability 8.0"),
        (replace(RUN, tf32=True), OLD, "compute capability 8.0"),
        (replace(RUN, tf32=True), H100, None),
        (replace(RUN, cudnn_benchmark=True), CPU, "cuDNN runs on GPUs only"),
        (replace(RUN, processor="xgrammar"), CPU, "pip install 'molprof.xgrammar.'"),
        (replace(KERNEL, backend="flash-attn"), CPU, "runs on GPUs only"),
        (replace(KERNEL, backend="flash-attn", mask="padding"), H100, "accepts no mask but the causal one"),
        (replace(KERNEL, backend="flex"), replace(CPU, compiler=False), "requires a C.. compiler"),
        (replace(KERNEL, backend="cudnn"), CPU, None),  # torch says itself why not
    ],
)
def test_what_cannot_run_is_known_before(case: Case, facts: Facts, reason: str | None) -> None:
    found = unsupported(case, facts)
    if reason is None:
        assert found is None
    else:
        assert found is not None
        assert re.search(reason, found), found


def test_a_grid_has_every_combination_that_is_another_run_once() -> None:
    grid = {"kv_cache": ("dynamic", "static"), "compile": ("off", "default"), "batch_size": (3, 4)}
    cases = generation_cases({**values_of(Benchmark("", grid)), "count": 7})
    assert [(case.batch_size, case.kv_cache, case.compile, case.count) for case in cases] == [
        (3, "dynamic", "off", 9), (3, "static", "off", 9), (3, "static", "default", 9),
        (4, "dynamic", "off", 8), (4, "static", "off", 8), (4, "static", "default", 8),
    ]  # fmt: skip


def test_batches_are_full_where_no_number_is_asked_for() -> None:
    cases = generation_cases({**values_of(Benchmark("", {"batch_size": (1, 2, 8)})), "count": None})
    assert [(case.batch_size, case.count) for case in cases] == [(1, 8), (2, 8), (8, 8)]
    with pytest.raises(UsageError, match="batch size 0 is below 1"):
        generation_cases(values_of(Benchmark("", {"batch_size": (0, 2)})))


@pytest.mark.parametrize("name", BENCHMARKS)
def test_the_grids_are_of_cases_that_exist(name: str) -> None:
    cases = generation_cases(values_of(BENCHMARKS[name]))
    assert len(set(map(case_id, cases))) == len(cases) > 1


def test_a_prefill_without_mask_is_causal_and_a_decode_step_asks_once() -> None:
    cases = sdpa_cases((read_shape("2x4x2x16x8"),), ("math",), ("prefill", "decode"), ("none", "padding"))
    assert [(case.queries, case.keys, case.mask) for case in cases] == [
        (16, 16, "causal"), (16, 16, "padding"), (1, 16, "none"), (1, 16, "padding"),
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["", "1x2x3x4", "1x2x3x4x5x6", "0x1x1x1x1", "axbxcxdxe", "1x2x3x4x-5"])
def test_what_is_no_shape_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no shape"):
        read_shape(text)
