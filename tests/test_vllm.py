"""vLLM as an engine: its tokens, times and requests, in the same trace as any other engine's."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from captures import of

from molprof import api
from molprof.analysis.trace import Trace
from molprof.common.errors import UsageError
from molprof.common.settings import CaptureSettings
from molprof.profiler.capture.capture import capture
from molprof.profiler.models.load import export
from molprof.profiler.recording.tracefile import OutputFile

FOLDER = os.environ.get("MOLPROF_VLLM")
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "minLength": 1, "maxLength": 8}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
LINES = [
    {"prompt": "[SMILES]CO[/SMILES]", "choices": ["no", "yes"]},
    {"prompt": "[SMILES]CCO[/SMILES]"},
    {"prompt": "[SMILES]CCCO[/SMILES]", "regex": "[0-9]{3}"},
]
ASKED = [{"role": "user", "content": [{"type": "text", "text": "[SMILES]CO[/SMILES]"}]}]
TOOL = {"type": "function", "function": {"name": "age", "parameters": {"type": "object", "properties": {
    "years": {"type": "integer", "minimum": 0, "maximum": 120}}, "required": ["years"],
    "additionalProperties": False}}}  # fmt: skip
REQUESTS: list[dict[str, Any]] = [
    {"messages": ASKED, "tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 40},
    {
        "url": "/v1/completions",
        "body": {"prompt": "[SMILES]CCO[/SMILES]", "structured_outputs": {"regex": "ab[0-9]cd"}},
    },
    {"prompt": "[SMILES]CCO[/SMILES]", "max_tokens": 4},
]
# All runs share one start of vLLM, in a process of its own.
SCRIPT = """
import json, sys
from pathlib import Path
from molprof.common.settings import CaptureSettings
from molprof.profiler.capture.capture import capture_together
from molprof.profiler.recording.tracefile import OutputFile
asked = []
for name, given in json.loads(sys.argv[1]).items():
    settings = CaptureSettings("qwen-chat", engine="vllm", batch_size=2, repeats=2, warmup=1, **given)
    asked.append((settings, OutputFile(Path(name + ".json.gz"))))
for result in capture_together(asked):
    print("\\n".join(result.notes))
"""
INPUTS: dict[str, dict[str, Any]] = {
    "lines": {"prompts": "ask.jsonl", "max_new_tokens": 6},
    "schema": {"prompts": "ask.txt", "schema": "person.json", "max_new_tokens": 40},
}
PROCESSORS = (None, "xgrammar", "table")


@pytest.fixture(scope="module")
def all_traces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Path]]:
    """Captures whose runs take turns in one engine, by input and processor."""
    if importlib.util.find_spec("vllm") is None and not os.path.isdir(FOLDER or ""):
        pytest.skip("vLLM is not installed, and MOLPROF_VLLM names no folder that has it")
    folder = tmp_path_factory.mktemp("vllm")
    export(CaptureSettings("qwen", device="cpu"), folder / "qwen-chat")
    (folder / "qwen-chat" / "chat_template.jinja").write_text("{% for one in messages %}{{ one.content }}{% endfor %}")
    (folder / "ask.jsonl").write_text("\n".join(map(json.dumps, LINES)))
    (folder / "ask.txt").write_text("".join(f"[SMILES]{'C' * count}O[/SMILES]\n" for count in range(1, 5)))
    (folder / "person.json").write_text(json.dumps(SCHEMA))
    (folder / "requests.jsonl").write_text("\n".join(map(json.dumps, REQUESTS)))
    runs = {
        f"{name} {processor or 'none'}": {**given, "processor": processor}
        for name, given in INPUTS.items()
        for processor in PROCESSORS
    }
    for processor in PROCESSORS[:2]:
        runs[f"requests {processor or 'none'}"] = {
            "requests": "requests.jsonl", "max_new_tokens": 8, "processor": processor, "stacks": True,
        }  # fmt: skip
    env = {**os.environ, **({"PYTHONPATH": FOLDER} if FOLDER else {})}
    words = [sys.executable, "-c", SCRIPT, json.dumps(runs)]
    done = subprocess.run(words, cwd=folder, env=env, check=False, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "runs in this process alone: all of it is recorded" in done.stdout
    found: dict[str, dict[str, Path]] = {}
    for name in runs:
        kind, processor = name.split()
        found.setdefault(kind, {})[processor] = folder / f"{name}.json.gz"
    return found


@pytest.fixture(scope="module")
def traces(all_traces: dict[str, dict[str, Path]]) -> dict[str, Path]:
    """By processor, of lines with constraints of their own."""
    return all_traces["lines"]


@pytest.fixture(scope="module")
def of_schema(all_traces: dict[str, dict[str, Path]]) -> dict[str, Path]:
    """By processor, of prompts with one schema."""
    return all_traces["schema"]


def manifest_of(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))["molprof"]
    return found


def test_requests_join_as_others_end(traces: dict[str, Path]) -> None:
    for name, path in traces.items():
        trace: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
        manifest, runs = trace["molprof"], trace["molprof"]["molecules"]
        assert manifest["resolved"]["processor"] == (None if name == "none" else name)
        assert manifest["problems"] == []
        first = runs[2]["step_tokens"].index(1)
        assert first == min(len(run["token_ids"]) for run in runs[:2])  # one of the others had ended
        (widths,) = manifest["rows_per_step"]
        ends = [len(run["step_tokens"] or run["token_ids"]) for run in runs]
        begins = [0, 0, first]
        assert widths == [
            sum(begin <= step < end for begin, end in zip(begins, ends, strict=True)) for step in range(max(ends))
        ]
        window = manifest["window"]
        kept = range(window["first_step"], window["last_step"] + 1)
        assert {event["args"]["step"] for event in of(trace["traceEvents"], "molprof.token")} == set(kept)
        for repeat in manifest["timings"]["repeats"]:
            assert sum(repeat["phases_ns"].values()) == pytest.approx(repeat["wall_ns"], rel=0.05)
        assert api.report(path).trace.lost_events == 0


def test_each_line_has_its_constraint(traces: dict[str, Path]) -> None:
    run = api.report(traces["xgrammar"]).run
    free = api.report(traces["none"]).run
    assert run is not None
    assert free is not None
    assert [item.valid for item in run.sequences] == [True, None, True]
    assert [item.valid for item in free.sequences] == [False, None, False]
    assert run.sequences[0].text in ("no", "yes")
    table = api.report(traces["table"]).run
    assert table is not None
    assert [item.text for item in table.sequences] == [item.text for item in run.sequences]
    assert run.sequences[1].text == free.sequences[1].text
    assert free.setup.engine == "vllm"
    assert api.compare(traces["none"], traces["xgrammar"]).differences[0].paired


def test_the_version_of_vllm_is_recorded(of_schema: dict[str, Path]) -> None:
    assert manifest_of(of_schema["none"])["environment"]["vllm"].startswith("0.")
    run = api.report(of_schema["none"]).run
    assert run is not None
    assert run.setup.vllm == manifest_of(of_schema["none"])["environment"]["vllm"]


def test_the_tables_masks_are_in_the_processor_and_making_it_is_timed(of_schema: dict[str, Path]) -> None:
    def per_step(name: str, phase: str) -> float:
        manifest = manifest_of(of_schema[name])
        times = [repeat["phases_ns"][phase] for repeat in manifest["timings"]["repeats"]]
        return min(times) / sum(manifest["steps_per_batch"])

    for name in of_schema:
        assert per_step(name, "processor") > 0
        assert per_step(name, "sampling") > 0
    once = {name: manifest_of(path)["timings"]["processor_once_ns"] for name, path in of_schema.items()}
    assert once["none"] is None
    assert once["xgrammar"] > 0
    assert once["table"] > 0
    for path in of_schema.values():
        for repeat in manifest_of(path)["timings"]["repeats"]:
            assert sum(repeat["phases_ns"].values()) == pytest.approx(repeat["wall_ns"], rel=0.05)


def test_an_answer_is_judged_as_a_client_gets_it(of_schema: dict[str, Path]) -> None:
    """Xgrammar lets special tokens into a string, and vLLM leaves them out of its texts."""
    judged = [item for name in of_schema for item in manifest_of(of_schema[name])["molecules"]]
    emptied = [item for item in judged if item["text"].startswith('{"name":"[/SMILES]')]
    for item in emptied:
        if '""' in item["text"].replace("[/SMILES]", "").replace("[CONFORMER]", ""):
            assert item["valid"] is False
            assert "vLLM leaves special tokens out of its texts" in item["problem"]
    assert {item["valid"] for item in manifest_of(of_schema["table"])["molecules"]} <= {True, False}


def test_what_vllm_does_in_its_own_way_is_not_claimed(of_schema: dict[str, Path]) -> None:
    words = [sys.executable, "-m", "molprof", "report", "--all", str(of_schema["none"])]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    settings = done.stdout.partition("\nSettings\n")[2].partition("\n\n")[0]
    assert "vLLM" in settings
    rows = [line.split("  ")[1] for line in settings.splitlines() if line.startswith("  ")]
    assert not {"KV cache", "attention", "prompt padding"} & set(rows)


def test_requests_as_they_are_with_and_without_what_constrains(all_traces: dict[str, dict[str, Path]]) -> None:
    run, free = (api.report(all_traces["requests"][name]).run for name in ("xgrammar", "none"))
    assert run is not None
    assert free is not None
    called, _, other = run.sequences
    assert [item.valid for item in run.sequences] == [False, True, None]  # the model writes white space to the limit
    assert (called.text or "").startswith("[")
    assert (called.problem or "").startswith("stopped at the token limit: no tool was called: not JSON: ")
    assert [item.tokens for item in free.sequences[1:]] == [8, 4]
    assert [item.valid for item in free.sequences] == [False, False, None]
    assert [item.text for item in free.sequences][2] == other.text
    assert called.prompt == "[SMILES]CO[/SMILES]"


def test_masks_of_a_captured_engine_by_step_and_request(all_traces: dict[str, dict[str, Path]]) -> None:
    path = all_traces["requests"]["xgrammar"]
    steps = Trace(path).sql("molprof_mask_step")
    assert len(steps)
    assert all(steps["masks"] <= steps["sequences"])
    names: dict[str, int] = {}
    for event in of(json.loads(gzip.decompress(path.read_bytes()))["traceEvents"], "python_function"):
        for end in ("grammar_bitmask", "apply_grammar_bitmask"):
            if event["name"].endswith(f": {end}") and "structured_output" in event["name"]:
                names[end] = names.get(end, 0) + round(1000 * event["dur"])
    assert steps["fill_ns"].sum() == pytest.approx(names["grammar_bitmask"], rel=0.01)
    assert steps["apply_ns"].sum() == pytest.approx(names["apply_grammar_bitmask"], rel=0.01)


def test_forced_tokens_are_found_by_replaying_the_masks(all_traces: dict[str, dict[str, Path]]) -> None:
    """Of ab[0-9]cd the table forces what any tokenizer forces: it is no shorter by XGrammar's masks."""
    manifest = manifest_of(all_traces["requests"]["xgrammar"])
    _, text, other = manifest["molecules"]
    assert len(text["forced"]) == len(text["token_ids"])
    assert text["forced"].endswith("1")  # the end token
    assert set(other["forced"]) == {"0"}
    for item in manifest["molecules"]:
        assert [letter == "o" for letter in item["stood"]] == [digit == "1" for digit in item["forced"]]
    assert set(text["stood"]) == {"o", "i"}
    assert set(other["stood"]) == {"f"}
    run = api.report(all_traces["requests"]["xgrammar"]).run
    assert run is not None
    assert run.forced.tokens == sum(item["forced"].count("1") for item in manifest["molecules"])
    assert sum(run.forced.stood.values()) == run.generated_tokens
    assert manifest_of(all_traces["requests"]["none"])["molecules"][0]["forced"] is None
    tables, grammars = (manifest_of(all_traces["lines"][name])["molecules"] for name in ("table", "xgrammar"))
    assert [item["forced"] for item in tables] == [item["forced"] for item in grammars]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kv_cache": "static"}, "vLLM takes no --kv-cache static"),
        ({"processor": "xgrammar"}, "nothing says what xgrammar is to constrain to"),
        ({"processor": "table", "grammar_file": "g"}, "a grammar is for a processor that takes one"),
        ({"processor": "generic"}, "vLLM calls no logits processor 'generic'"),
        ({"drop_finished": True}, "engine 'vllm' neither feeds forced runs nor drops rows"),
    ],
)
def test_what_vllm_does_not_do(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    (tmp_path / "in.txt").write_text("a")
    given: dict[str, Any] = {"prompts": str(tmp_path / "in.txt"), "max_new_tokens": 3, "engine": "vllm", **changes}
    with pytest.raises(UsageError, match=message):
        capture(CaptureSettings("llama", **given), OutputFile(tmp_path / "out.json"))


def test_a_constraint_of_a_line_that_nothing_would_enforce(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"prompt": "a", "regex": "b"}')
    asked = CaptureSettings("llama", processor="xgrammar", prompts=str(tmp_path / "in.jsonl"), max_new_tokens=3)
    with pytest.raises(UsageError, match=r"line 1 of .*in.jsonl has regex of its own, which only vLLM enforces"):
        capture(asked, OutputFile(tmp_path / "out.json"))
