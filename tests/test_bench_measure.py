"""What is measured in a case's process: figures of tiny models and kernels, formulas by hand, and whole commands."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Cli
from tiny import SHAPE, loaded
from transformers import DynamicCache

from molprof.cli import cli
from molprof.profiler.bench import generation, schedule
from molprof.profiler.bench.cases import GenerateCase, SdpaCase
from molprof.profiler.bench.facts import Facts, UnsupportedError
from molprof.profiler.bench.generation import filled, held_bytes, measure_generation
from molprof.profiler.bench.sdpa import flops, least_bytes, measure_sdpa, padding_mask
from molprof.profiler.bench.worker import answered, out_of_memory
from molprof.profiler.models.load import LoadedModel
from molprof.profiler.molecules.prompts import Prompt

FLOAT_BYTES = 4
KERNELS = (
    "bench", "sdpa", "--shape", "1x2x1x16x8", "--backend", "auto,flash-attn", "--phase", "decode",
    "--mask", "none", "--device", "cpu", "--repeats", "1",
)  # fmt: skip


@pytest.fixture
def tiny_model(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoadedModel]:
    """What `load` gives, whatever is asked for; switches of torch are put back."""
    found = loaded("llama")
    own = dataclasses.replace(found, model=copy.deepcopy(found.model))
    monkeypatch.setattr(generation, "load", lambda *arguments: own)
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    yield own
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.allow_tf32 = before[1]


def case(**settings: Any) -> GenerateCase:
    return GenerateCase(**{"model": "llama", "batch_size": 2, "count": 4, "max_new_tokens": 5, **settings})


def test_generation_gives_passes_phases_tokens_and_memory(tiny_model: LoadedModel) -> None:
    answer = measure_generation(case(passes=2, warmup=1))
    figures = answer["figures"]
    assert (len(figures["wall_ns"]), len(figures["phases_ns"]), len(figures["warmup_ns"])) == (2, 2, 1)
    for wall_ns, phases in zip(figures["wall_ns"], figures["phases_ns"], strict=True):
        assert 0 < sum(phases.values()) <= wall_ns
        assert {"tokenize", "prefill", "forward", "sampling"} <= set(phases)
    assert figures["steps"] == 2 * 5
    assert figures["row_steps"] == 4 * 5
    assert 4 <= figures["tokens"] <= 4 * 5
    assert figures["molecules"] == 4
    assert figures["compiles"] == [0, 0]
    assert (figures["graph_breaks"], figures["graph_cache_hits"], figures["processor"]) == (0, 0, None)
    assert figures["peak_memory_bytes"] > 1_000_000
    assert figures["dtype"] == "float32"
    # Two rows; before the last forward a cache that grows lacks the last two tokens.
    columns = max(figures["prompt_widths"]) + 5 - 2
    assert figures["kv_cache_bytes"] == 2 * SHAPE.layers * 2 * SHAPE.kv_heads * columns * SHAPE.head_dim * FLOAT_BYTES
    assert answer["environment"]["torch"] == torch.__version__
    json.dumps(answer)


def test_a_static_cache_has_its_whole_size_and_the_same_text(tiny_model: LoadedModel) -> None:
    grown, fixed = measure_generation(case())["figures"], measure_generation(case(kv_cache="static"))["figures"]
    columns = max(fixed["prompt_widths"]) + 5 - 1
    least = 2 * SHAPE.layers * 2 * SHAPE.kv_heads * columns * SHAPE.head_dim * FLOAT_BYTES
    assert fixed["kv_cache_bytes"] >= least
    assert fixed["kv_cache_bytes"] > grown["kv_cache_bytes"]
    assert fixed["text_digest"] == grown["text_digest"]


def test_padding_to_a_multiple_changes_widths_and_no_text(tiny_model: LoadedModel) -> None:
    plain, wide = measure_generation(case())["figures"], measure_generation(case(padding_multiple=16))["figures"]
    assert [width % 16 for width in wide["prompt_widths"]] == [0, 0]
    assert all(0 <= new - old < 16 for new, old in zip(wide["prompt_widths"], plain["prompt_widths"], strict=True))
    assert wide["text_digest"] == plain["text_digest"]


def test_a_static_cache_of_a_given_length(tiny_model: LoadedModel) -> None:
    short = measure_generation(case(kv_cache="static"))["figures"]
    long = measure_generation(case(kv_cache="static", max_cache_length=100))["figures"]
    assert long["kv_cache_bytes"] == 2 * SHAPE.layers * 2 * SHAPE.kv_heads * 100 * SHAPE.head_dim * FLOAT_BYTES
    assert long["text_digest"] == short["text_digest"]
    with pytest.raises(UnsupportedError, match="--max-cache-length 20 is less than the"):
        measure_generation(case(kv_cache="static", max_cache_length=20))


def test_compiling_is_counted_before_the_timed_passes(tiny_model: LoadedModel) -> None:
    torch._dynamo.reset()
    figures = measure_generation(case(kv_cache="static", compile="eager", passes=2))["figures"]
    assert (figures["warmup_compiles"], figures["compiles"]) == ([1], [0, 0])
    assert figures["warmup_compile_ns"][0] > 0
    torch._dynamo.reset()


def test_a_processor_is_measured_with_its_phase(tiny_model: LoadedModel) -> None:
    figures = measure_generation(case(processor="auto", batch_size=1, count=1, max_new_tokens=None))["figures"]
    assert figures["processor"] == "generic"
    assert figures["phases_ns"][0]["processor"] > 0


def test_an_attention_without_a_kernel_is_unsupported_by_torchs_own_words(tiny_model: LoadedModel) -> None:
    with pytest.raises(UnsupportedError, match="No viable backend for scaled_dot_product_attention"):
        measure_generation(case(attention="sdpa-efficient", device="cpu"))


def test_settings_that_do_not_go_together_are_unsupported(tiny_model: LoadedModel, tmp_path: Path) -> None:
    (tmp_path / "ask.txt").write_text("one\ntwo\n")
    with pytest.raises(UnsupportedError, match="'generic' needs molecules: plain text has no skeleton"):
        measure_generation(case(processor="generic", prompts=str(tmp_path / "ask.txt")))


def test_prompts_come_again_where_there_are_too_few() -> None:
    one, two = (Prompt(number, "", str(number), None) for number in (1, 2))
    assert filled([one, two], 5) == [one, two, one, two, one]
    assert filled([one, two], 1) == [one]


def test_the_size_of_a_cache_is_that_of_its_tensors() -> None:
    cache = DynamicCache()
    states = torch.zeros(2, 3, 5, 7)
    cache.update(states, states.clone(), 0)
    cache.update(states, states.clone(), 1)
    assert held_bytes(cache) == 2 * 2 * 2 * 3 * 5 * 7 * FLOAT_BYTES
    assert held_bytes(None) == 0


@pytest.mark.parametrize(
    ("mask", "queries", "operations", "moved"),
    [
        ("none", 1, 4 * 2 * 4 * 1 * 16 * 8, 2 * (2 * 2 * 4 * 1 * 8 + 2 * 2 * 2 * 16 * 8)),
        ("causal", 16, 4 * 2 * 4 * 136 * 8, 2 * (2 * 2 * 4 * 16 * 8 + 2 * 2 * 2 * 16 * 8)),
        ("padding", 16, 4 * 2 * 4 * 256 * 8, 2 * (2 * 2 * 4 * 16 * 8 + 2 * 2 * 2 * 16 * 8) + 2 * 16 * 16),
    ],
)
def test_operations_and_bytes_by_hand(mask: str, queries: int, operations: int, moved: int) -> None:
    kernel = SdpaCase("auto", 2, 4, 2, queries, 16, 8, mask)
    assert (flops(kernel), least_bytes(kernel, 2)) == (operations, moved)


def test_a_padding_mask_is_causal_and_hides_what_is_padded() -> None:
    mask = padding_mask(SdpaCase("auto", 2, 1, 1, 2, 32, 8, "padding"), torch.device("cpu"))
    assert tuple(mask.shape) == (2, 1, 2, 32)
    assert mask[0, 0].sum(dim=1).tolist() == [31, 32]
    assert mask[1, 0].sum(dim=1).tolist() == [29, 30]  # two of its tokens are padding


@pytest.mark.parametrize("backend", ["auto", "math", "flash"])
@pytest.mark.parametrize("mask", ["causal", "padding"])
def test_kernels_on_a_cpu(backend: str, mask: str) -> None:
    answer = measure_sdpa(SdpaCase(backend, 1, 4, 2, 16, 16, 8, mask, "float32", "cpu"))
    figures = answer["figures"]
    assert len(figures["times_ns"]) >= 5
    assert min(figures["times_ns"]) > 0
    assert figures["largest_error"] < 1e-5
    assert (figures["chosen"] is None) == (backend != "auto")
    json.dumps(answer)


def test_a_kernel_that_torch_lacks_is_unsupported_by_its_own_words() -> None:
    answer = answered(lambda request: measure_sdpa(SdpaCase("cudnn", 1, 4, 2, 16, 16, 8, "none", "float32", "cpu")), {})
    assert answer["status"] == "unsupported"
    assert answer["message"].startswith("No viable backend for scaled_dot_product_attention")
    assert answer["message"].endswith("(on cpu)")


@pytest.mark.parametrize(
    ("problem", "found"),
    [
        (RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"), True),
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (MemoryError(), True),
        (ValueError("out of memory"), False),
        (RuntimeError("shape mismatch"), False),
        (None, False),
    ],
)  # fmt: skip
def test_allocations_that_failed(problem: BaseException | None, found: bool) -> None:
    assert out_of_memory(problem) is found


def test_torchs_own_failure_to_allocate_is_out_of_memory() -> None:
    answer = answered(lambda request: {"figures": torch.empty(1 << 50)}, {})
    assert answer["status"] == "out of memory"


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    """The lines of `molprof ARGUMENTS --dry-run`, whose machine is a CPU with a compiler and no package more."""
    monkeypatch.setattr(schedule, "read_machine", lambda *asked: Facts("cpu", None, True, (), {}))

    def lines(*arguments: str) -> list[str]:
        assert cli.main([*arguments, "--dry-run"], standalone_mode=False) == 0
        return capsys.readouterr().out.splitlines()

    return lines


def test_cases_are_listed(listed: Callable[..., list[str]]) -> None:
    assert any("1 of 2 cases can run on cpu" in line for line in listed(*KERNELS))


def test_a_whole_benchmark_as_a_command(molprof: Cli, tmp_path: Path) -> None:
    ran = molprof(*KERNELS, "-o", "out.jsonl")
    assert (ran.returncode, ran.stdout) == (0, ""), ran.stderr
    assert ran.stderr.endswith("results: 1 ok, 1 unsupported\nnext: molprof bench show out.jsonl\n")
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [record["record"] for record in records[:2]] == ["environment", "run"]
    status = {record["settings"]["backend"]: record["status"] for record in records[2:]}
    assert status == {"auto": "ok", "flash-attn": "unsupported"}
    # Each process says what it ran on: the same machine as the one that was asked first.
    assert len({record["environment"] for record in records[2:]}) == 1
    shown = molprof("bench", "show", "out.jsonl")
    assert "Attention kernel, decode step, 1x2x1x16x8, mask none, auto" in shown.stdout
    again = molprof(*KERNELS, "-o", "out.jsonl", "--resume")
    assert again.returncode == 0
    assert "nothing left to run" in again.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_device_that_is_not_there_is_a_mistake(molprof: Cli, tmp_path: Path) -> None:
    result = molprof("bench", "matrix", "--device", "cuda", "-o", "out.jsonl")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("molprof: error: the device 'cuda' is not available: torch ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--model", "qwen,./absent"), "no folder ./absent to load the model from"),
        (("--model", "qwen,no-such-model"), "no model 'no-such-model': no preset"),
        (("--model", "qwen", "--tokenizer", "./absent"), "no folder ./absent to load the tokenizer from"),
    ],
    ids=["folder", "name", "tokenizer"],
)  # fmt: skip
def test_a_model_that_is_not_there_is_refused_before_anything_runs(
    molprof: Cli, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    result = molprof("bench", "batch", *options, "-o", "out.jsonl", env={**os.environ, "HF_HUB_OFFLINE": "1"})
    assert (result.returncode, result.stdout) == (2, "")
    assert message in result.stderr.splitlines()[0]
    assert list(tmp_path.iterdir()) == []


def test_a_models_short_name_stands_for_its_table(
    listed: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "molprof.toml").write_text('[models.mine]\npath = "qwen"\nprocessor = "grammar"\n')
    lines = listed("bench", "processors", "--model", "mine", "--processor", "none,auto,generic")
    assert [line.split(maxsplit=1)[1] for line in lines[-3:]] == [
        "qwen no LP b8 sdpa dynamic",
        "qwen grammar b8 sdpa dynamic",
        "qwen generic b8 sdpa dynamic",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sdpa",), "Missing option '-o'"),
        (("matrix",), "Missing option '-o'"),
        (("sdpa", "--shape", "1x2", "-o", "x"), "is no shape"),
        (("sdpa", "--backend", "magic", "-o", "x"), "'magic' is not one of auto, math"),
        (("matrix", "--attention", "sdpa,magic", "-o", "x"), "'magic' is not one of eager"),
        (("matrix", "--batch-size", "a", "-o", "x"), "'a' is not a list of whole numbers"),
        (("matrix", "--batch-size", "0", "-o", "x"), "batch size 0 is below 1"),
        (("processors", "--processor", "nope", "-o", "x"), "no processor 'nope'"),
        (("matrix", "--memory-limit", "much", "-o", "x"), "'much' is not a size such as 12G"),
        (("matrix", "--prompts", "absent.txt", "-o", "x"), "File 'absent.txt' does not exist"),
        (("nothing",), "No such command 'nothing'"),
    ],
)
def test_mistakes_are_one_line(molprof: Cli, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    result = molprof("bench", *arguments)
    assert result.returncode == 2, result.stderr
    assert message in result.stderr.splitlines()[0]
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []
