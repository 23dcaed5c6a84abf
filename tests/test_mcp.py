"""`molprof mcp` over stdio answers questions of the SDK's client about public traces, and refuses others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio
import pytest
from tiny_trace import document, write

from molprof.commands.mcp_tools import bounded
from molprof.common.errors import EngineError, UsageError

pytestmark = pytest.mark.skipif(find_spec("mcp") is None, reason="the package mcp is not installed")
CORPUS = os.environ.get("MOLPROF_CORPUS")
EXPECTED = json.loads(Path(CORPUS, "expected.json").read_text()) if CORPUS else {}
DECODE, PIECEWISE = "mi300x_vllm_decode_graph.json.gz", "mi300x_vllm_piecewise_graph.json.gz"

FIGURES = ("kernels", "kernel_time_ns", "launches", "graph_launches", "launches_without_gpu_work")

Calls = list[tuple[str, dict[str, Any]]]


def asked(folder: Path, calls: Calls) -> list[Any]:
    """Answers of one server to the calls, in order: the object, or the text of a tool's error."""
    import mcp  # on use: it takes half a second

    async def ask() -> list[Any]:
        line = ["-c", "from molprof.cli import main; main()", "mcp", str(folder)]
        server = mcp.StdioServerParameters(command=sys.executable, args=line, env=dict(os.environ))
        found: list[Any] = []
        async with mcp.Client(mcp.stdio_client(server)) as client:
            for tool, arguments in calls:
                result = await client.call_tool(tool, arguments)
                text = result.content[0].text
                found.append(text if result.is_error else json.loads(text))
        return found

    return anyio.run(ask)


def figure(answer: Any, name: str) -> Any:
    found = next(item for item in answer["figures"] if item["id"] == name)
    assert found["sql"], name
    assert found["verdict"] in ("exact", "bounded", "not_to_be_had")
    return found["value"]


# A tool, its arguments, what is read from its answer, and where the oracle has it.
QUESTIONS: list[tuple[str, dict[str, Any], Callable[[Any], Any], Callable[[dict[str, Any]], Any]]] = [
    ("report", {"trace": DECODE}, lambda it: [figure(it, name) for name in FIGURES],
     lambda it: [it[name] for name in FIGURES]),
    ("report", {"trace": DECODE, "select": "launches"},
     lambda it: {item.pop("name"): item for item in it["memory_operations"]}, lambda it: it["memory_operations"]),
    ("query", {"trace": DECODE, "sql": "SELECT name FROM slice WHERE category = 'kernel' GROUP BY 1", "limit": 5},
     lambda it: len(it["rows"]) + it["left_out"]["rows"], lambda it: it["kernel_names"]),
    ("query", {"trace": DECODE, "sql": "SELECT SUM(dur) FROM slice WHERE category = $kind",
               "parameters": {"kind": "gpu_memcpy"}},
     lambda it: it["rows"][0][0], lambda it: sum(item["time_ns"] for item in it["memory_operations"].values())),
    ("origin", {"trace": DECODE, "by": "kernel", "depth": 1},
     lambda it: [it["whole"]["kernels"], sum(row["gpu_ns"] for row in it["tree"])],
     lambda it: [it["kernels"],
                 it["kernel_time_ns"] + sum(item["time_ns"] for item in it["memory_operations"].values())]),
]  # fmt: skip


@pytest.mark.skipif(not CORPUS, reason="MOLPROF_CORPUS is not set: no real traces to read")
def test_questions_are_answered_as_the_oracle_does() -> None:
    calls: Calls = [(tool, arguments) for tool, arguments, _, _ in QUESTIONS]
    calls += [("compare", {"traces": [DECODE, PIECEWISE], "select": "kernels launches"}), ("queries", {})]
    *answers, compared, modules = asked(Path(str(CORPUS), "traces"), [*calls])
    counts = EXPECTED[DECODE]["counts"]
    for (tool, arguments, read, expected), answer in zip(QUESTIONS, answers, strict=True):
        assert not isinstance(answer, str), answer
        assert read(answer) == expected(counts), (tool, arguments)
    values = {row["id"]: row["values"] for row in compared["figures"]}
    for name in ("kernels", "launches"):
        assert values[name] == [EXPECTED[trace]["counts"][name] for trace in (DECODE, PIECEWISE)]
    assert "launches" in {module["name"] for module in modules["modules"]}


def test_what_it_refuses_is_an_error_of_the_tool(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    write(folder / "a.json", document())
    write(tmp_path / "secret.json", document())
    (folder / "damaged.json").write_text('{"traceEvents": [')
    (folder / "link.json").symlink_to(tmp_path / "secret.json")
    select = "SELECT COUNT() AS count FROM slice"
    outside = [str(tmp_path / "secret.json"), "../secret.json", "link.json", "none.json", ".", "-"]
    writing = [
        "DELETE FROM slice",
        f"CREATE TABLE mine AS {select}",
        f"ATTACH DATABASE '{tmp_path / 'new.db'}' AS mine",
        f"VACUUM INTO '{tmp_path / 'new.db'}'",
        f"SELECT \"export_json\"('{tmp_path / 'new.json'}')",
        "WITH a AS (SELECT 1) INSERT INTO args SELECT 1",
        str(tmp_path / "secret.json"),
        f"{select}; SELECT",
    ]
    calls: Calls = [("query", {"trace": trace, "sql": select}) for trace in outside]
    calls += [("query", {"trace": "a.json", "sql": sql}) for sql in writing]
    calls += [("report", {"trace": "damaged.json"}), ("report", {"trace": "a.json", "select": "nonsense"})]
    calls += [("report", {}), ("query", {"trace": "a.json", "sql": select, "limit": 0})]
    found = asked(folder, [*calls, ("query", {"trace": "a.json", "sql": select}), ("traces", {})])
    assert all(isinstance(answer, str) for answer in found[:-2]), found
    assert {answer.replace(trace, "X") for trace, answer in zip(outside, found, strict=False)} == {
        "Error executing tool query: no file 'X' below the folders of this server; the tool `traces` lists them"
    }
    assert "root:" not in str(found)
    assert found[-2]["rows"][0][0] > 0
    assert [item["path"] for item in found[-1]["traces"]] == ["a.json", "damaged.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["secret.json", "traces"]
    assert sorted(path.name for path in folder.iterdir()) == ["a.json", "damaged.json", "link.json"]


@pytest.mark.usefixtures("anew")
def test_half_a_character_is_answered(tmp_path: Path) -> None:
    requests: list[Any] = [
        {"method": "initialize", "id": 0, "params": {
            "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}},
        {"method": "notifications/initialized"},
        {"method": "tools/call", "id": 1, "params": {"name": "report", "arguments": {"trace": "\\u\U0001f600\ud83d"}}},
    ]  # fmt: skip
    line = [sys.executable, "-m", "molprof", "mcp", str(tmp_path)]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        for request in requests:
            server.stdin.write(json.dumps({"jsonrpc": "2.0", **request}) + "\n")
        server.stdin.flush()
        server.stdout.readline()
        answer = json.loads(server.stdout.readline())  # waits without end where there is none
        server.stdin.close()
    assert answer["id"] == 1
    assert "no file '\\\\u\U0001f600\\\\ud83d' below" in answer["result"]["content"][0]["text"]


def test_an_answer_is_bounded_and_says_what_it_left_out() -> None:
    text = bounded({"a": ["x" * 100] * 1000, "b": ["y" * 3000], "left_out": {"a": 5}}, most=5000)
    answer = json.loads(text)
    assert 1000 < len(text) <= 5000
    assert len(answer["a"]) + answer["left_out"]["a"] == 1005
    assert answer["b"] == ["y" * 2000 + "... (1000 more)"]
    assert answer["left_out"].keys() == {"a"}
    with pytest.raises(UsageError, match="the answer is too large"):
        bounded({"a": {str(number): number for number in range(9)}}, most=50)


def test_a_query_without_end_is_ended_and_the_next_call_answered(tmp_path: Path) -> None:
    from molprof.commands.mcp_server import TraceReader

    reader = TraceReader(limit_s=1)
    endless = "WITH RECURSIVE a(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM a) SELECT MAX(n) FROM a"
    path = str(write(tmp_path / "a.json", document()))
    with pytest.raises(EngineError, match="it took over 1 s"):
        reader.call("query", trace=path, sql=endless, parameters={}, stacks=False, limit=1)
    reader.worker.limit_s = 300
    assert reader.call("queries", name="launches")["name"] == "launches"
    reader.worker.kill()
    reader.worker.close()


def test_a_missing_extra_is_one_line(tmp_path: Path) -> None:
    hidden = "import importlib.util as u; u.find_spec = lambda name, *more: None"
    line = [sys.executable, "-c", f"from molprof.cli import main; {hidden}; main()", "mcp", str(tmp_path)]
    result = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == (
        "molprof: error: molprof mcp needs the package 'mcp', which is not installed\n  pip install 'mcp>=2.0'\n"
    )
