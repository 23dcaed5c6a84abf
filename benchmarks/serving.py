"""A real vLLM server, plain and constrained, by kind of request: tools, formats, tags, reasoning; a table in Markdown.

python benchmarks/serving.py                             the server is started here, with a preset
python benchmarks/serving.py --repeats 10 --concurrency 8 --requests 8

It runs where vLLM is installed, or MOLPROF_VLLM names a folder that has it. All kinds are lines of one file, which
`molprof attach` sends at temperature 0, plain and constrained in turn. Times are medians of the timed passes; "over
plain" is the ratio of the times between tokens, round by round, "~" where its interval holds 1. Below the table stands
which texts are equal: of a request in all passes, of requests with one constraint in several forms, and of one whose
constraint allows everything with its plain text.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from shared import keep, parser, progress, table

from molprof.analysis.compare.statistics import paired_ratio
from molprof.analysis.figures.requests import read_served
from molprof.common.attached import Attached, from_json
from molprof.common.settings import CaptureSettings
from molprof.common.values import Unit, by_unit, per

SCHEMA = {
    "type": "object",
    "properties": {"element": {"enum": ["C", "N", "O"]}, "charge": {"type": "integer", "minimum": -3, "maximum": 3}},
    "required": ["element", "charge"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "atom", "description": "One atom.", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "bond", "parameters": {
        "type": "object", "properties": {"order": {"enum": [1, 2, 3]}}, "required": ["order"],
        "additionalProperties": False}}},
]  # fmt: skip
NAMED = {"type": "function", "function": {"name": "atom"}}
TAG = {
    "type": "structural_tag",
    "format": {
        "type": "tag",
        "begin": "<atom>",
        "content": {"type": "json_schema", "json_schema": SCHEMA},
        "end": "</atom>",
    },
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "atom", "schema": SCHEMA}}
GRAMMAR = 'root ::= atom (" " atom)*\natom ::= [CNO] "-"? [0-3]\n'
# The reasoning parser takes all before </think> for reasoning; the other requests have none.
THINK, NO_THINK = "<think>", "<think></think>"
SERVER = (
    "--enforce-eager", "--max-num-seqs", "32", "--max-model-len", "2048", "--enable-auto-tool-choice",
    "--tool-call-parser", "hermes", "--reasoning-parser", "deepseek_r1",
    "--reasoning-config", json.dumps({"reasoning_start_str": "<think>", "reasoning_end_str": "</think>"}),
    "--structured-outputs-config", json.dumps({"backend": "xgrammar", "disable_any_whitespace": True}),
)  # fmt: skip
SAME, ALL = "one schema", "allows everything"


def _chat(prompt: str, after: str = NO_THINK, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": prompt + after}], **fields}


def _text(prompt: str, **fields: Any) -> dict[str, Any]:
    return {"prompt": prompt + NO_THINK, **fields}


def kinds(prompt: str) -> dict[str, tuple[dict[str, Any], str]]:
    """Return a request of each kind, and the set of those that have to write the same text."""
    return {
        "chat, response_format json_schema": (_chat(prompt, response_format=FORMAT), SAME),
        "the same as a line of a batch": ({
            "custom_id": "one", "method": "POST", "url": "/v1/chat/completions",
            "body": _chat(prompt, response_format=FORMAT)}, SAME),
        "completion, structured_outputs json": (_text(prompt, structured_outputs={"json": SCHEMA}), SAME),
        "chat, response_format structural_tag": (_chat(prompt, response_format=TAG), ""),
        "chat, tools, tool_choice required": (_chat(prompt, tools=TOOLS, tool_choice="required"), ""),
        "chat, tools, a named tool": (_chat(prompt, tools=TOOLS, tool_choice=NAMED), ""),
        "chat, tools, tool_choice auto": (_chat(prompt, tools=TOOLS, tool_choice="auto"), ""),
        "chat, reasoning, then json_schema": (
            _chat(prompt, THINK, response_format=FORMAT, thinking_token_budget=12), ""),
        "completion, structured_outputs regex": (_text(prompt, structured_outputs={"regex": "[CNO]{8,12}"}), ""),
        "completion, structured_outputs choice": (_text(prompt, structured_outputs={"choice": ["yes", "no"]}), ""),
        "completion, structured_outputs grammar": (_text(prompt, structured_outputs={"grammar": GRAMMAR}), ""),
        r"completion, regex [\s\S]*": (_text(prompt, structured_outputs={"regex": r"[\s\S]*"}), ALL),
        "completion, guided_regex": (_text(prompt, guided_regex="[CNO]{8,12}"), ""),
        "completion, nothing": (_text(prompt), ALL),
    }  # fmt: skip


@contextmanager
def server(model: str, folder: Path, *more: str) -> Iterator[str]:
    """Yield the URL of a vLLM server of a preset, which runs inside the block; `more` are options of it."""
    from transformers import AutoTokenizer

    from molprof.profiler.models.load import export

    export(CaptureSettings(model, device="cpu"), folder / model)
    tokenizer = AutoTokenizer.from_pretrained(folder / model)
    tokenizer.add_tokens([THINK, "</think>"])
    tokenizer.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    tokenizer.save_pretrained(folder / model)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    env = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    if packages := os.environ.get("MOLPROF_VLLM"):
        env["PYTHONPATH"] = packages
    words = ["-m", "vllm.entrypoints.openai.api_server", "--model", str(folder / model), "--served-model-name", model]
    with (folder / "server.log").open("w") as log:
        started = subprocess.Popen(
            [sys.executable, *words, "--port", str(port), *SERVER, *more], env=env, stdout=log, stderr=log
        )
        try:
            while True:
                try:
                    urllib.request.urlopen(f"{url}/health", timeout=5)
                    break
                except OSError:
                    if started.poll() is not None:
                        sys.exit(f"vLLM does not start:\n{(folder / 'server.log').read_text()[-3000:]}")
                    time.sleep(1)
            yield url
        finally:
            started.terminate()
            started.wait()


def attached(url: str, options: argparse.Namespace, folder: Path) -> dict[str, Attached]:
    """Return what `molprof attach` measured of the requests of all kinds, plain and constrained."""
    prompts = [f"[SMILES]{'C' * (1 + number)}O[/SMILES]" for number in range(options.requests)]
    lines = [request for prompt in prompts for request, _ in kinds(prompt).values()]
    (folder / "requests.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    words = ["attach", url, "--requests", str(folder / "requests.jsonl"), "--body", '{"temperature": 0}']
    words += ["--max-new-tokens", str(options.max_new_tokens), "--concurrency", str(options.concurrency)]
    words += ["--repeats", str(options.repeats), "--format", "json"]
    done = subprocess.run([sys.executable, "-m", "molprof", *words], check=True, stdout=subprocess.PIPE, text=True)
    return {name: from_json(run) for name, run in json.loads(done.stdout)["runs"].items()}


def _some(run: Attached, index: int, count: int) -> Attached:
    """Return the run as if it had the requests of one kind alone."""
    passes = [
        replace(item, answers=[one for one in item.answers if (one.line - 1) % count == index]) for item in run.passes
    ]
    return replace(run, passes=passes)


def rows(runs: dict[str, Attached]) -> Iterator[tuple[str, ...]]:
    names = list(kinds(""))
    for index, name in enumerate(names):
        of = {side: _some(run, index, len(names)) for side, run in runs.items()}
        served = {side: read_served(run) for side, run in of.items()}
        values = served["constrained"].values

        def both(figure: str, unit: Unit = "ns", served: dict[str, Any] = served) -> str:
            return " -> ".join(
                by_unit(unit, served[side].values.get(figure)) or "-" for side in ("plain", "constrained")
            )

        def one(figure: str, unit: Unit = "ns", values: Any = values) -> str:
            return by_unit(unit, values.get(figure)) if values.get(figure) is not None else "-"

        between = [[item.figures["between_tokens_p50_ns"] for item in served[side].passes] for side in of]
        over = "-"
        if None not in (*between[0], *between[1]) and (interval := paired_ratio(between[1], between[0])):
            noise = "~ " if interval.low <= 1 <= interval.high else ""
            over = f"{noise}{interval.low:.2f} to {interval.high:.2f}"
        valid = [[answer.valid for item in of[side].passes for answer in item.answers] for side in of]
        judged = [f"{sum(map(bool, each))} of {len(each)}" if None not in each else "-" for each in valid]
        seen = " / ".join(one(figure, "number") for figure in ("reasoning_tokens", "argument_tokens", "unseen_tokens"))
        yield (
            name, both("first_token_p50_ns"), one("first_constrained_p50_ns"), one("between_constrained_p50_ns"),
            one("between_free_p50_ns"), over, seen, " -> ".join(judged),
        )  # fmt: skip


def texts(runs: dict[str, Attached]) -> Iterator[str]:
    """Yield a line on each set of texts that have to be equal."""
    names = list(kinds(""))

    def of(run: Attached, index: int) -> list[tuple[int, str]]:
        each = {
            ((one.line - 1) // len(names), one.text + "".join(one.calls))
            for item in run.passes for one in item.answers if (one.line - 1) % len(names) == index
        }  # fmt: skip
        return sorted(each)

    prompts = len(runs["plain"].passes[0].answers) // len(names)
    unlike = [f"{side} {name}" for side, run in runs.items() for index, name in enumerate(names)
              if len(of(run, index)) != prompts]  # fmt: skip
    yield f"texts of a request in all passes: {'equal' if not unlike else f'unlike in {unlike}'}"
    same = [of(runs["constrained"], index) for index, (_, kind) in enumerate(kinds("").values()) if kind == SAME]
    yield f"texts of one schema in {len(same)} forms: {'equal' if all(item == same[0] for item in same) else 'unlike'}"
    free = [of(runs[side], index) for index, (_, kind) in enumerate(kinds("").values()) if kind == ALL for side in runs]
    alike = "equal" if all(item == free[0] for item in free) else "unlike"
    yield f"texts of a constraint that allows everything, and of none: {alike}"
    shares = [per(item.wall_ns, 1e9) or 0 for run in runs.values() for item in run.passes]
    yield f"{len(shares)} passes of {min(shares):.3g} to {max(shares):.3g} s"


HEADINGS = (
    "request", "first token", "first constrained", "between, inside", "between, outside", "over plain",
    "tokens of reasoning / arguments / tags and ends", "valid",
)  # fmt: skip


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--model", default="qwen", help="preset")
    made.add_argument("--requests", type=int, default=1, help="of each kind")
    made.add_argument("--concurrency", type=int, default=1)
    made.add_argument("--max-new-tokens", type=int, default=48)
    made.add_argument("--repeats", type=int, default=6)
    made.add_argument("-o", "--output", type=Path, help="keep the rows in this file too, as JSON")
    options = made.parse_args()
    with tempfile.TemporaryDirectory() as scratch, server(options.model, Path(scratch)) as url:
        progress(f"vLLM serves {options.model} at {url}")
        runs = attached(url, options, Path(scratch))
    found = list(rows(runs))
    print(table(HEADINGS, found))
    print("\n" + "\n".join(f"- {line}" for line in texts(runs)))
    keep(options.output, [dict(zip(HEADINGS, row, strict=True)) for row in found])


if __name__ == "__main__":
    main()
