"""What commands print of known input, command by command, and the files in `tests/goldens/` that hold it.

    python tests/goldens.py            # which files differ
    python tests/goldens.py --write    # make them anew
    python tests/goldens.py --show report/cpu-qwen.xz

A golden file holds one or more commands, each with its exit code, stderr, stdout, and a summary of files that it wrote.
Names that end in `.xz` are packed. Those of traces in MOLPROF_CORPUS are left alone where it is not set. The help of all
commands is in `docs/commands.md`, which `tests/test_docs.py` compares.
"""

from __future__ import annotations

import argparse
import difflib
import functools
import gc
import gzip
import hashlib
import html.parser
import io
import json
import logging
import lzma
import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from molprof import __version__
from molprof.cli import main as molprof

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "tests/goldens"
GIVEN = FOLDER / "given"  # small inputs, most of them broken
CORPUS = os.environ.get("MOLPROF_CORPUS")
_HEAD = "$ "
_DIFF_LINES = 60
_MOST_BYTES = 10_000  # of a written file that is shown whole
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Golden:
    """A golden file: its name in `FOLDER`, and the commands that it holds, without their first word.

    `COLUMNS=80 report ...` is run as on a terminal of that width, and `a && b` is one command after the other.
    """

    name: str
    commands: tuple[str, ...]

    @property
    def needs_corpus(self) -> bool:
        return any("corpus/" in command for command in self.commands)


def _several(command: str, *formats: str) -> tuple[str, ...]:
    return tuple(f"{command} --format {name}" for name in formats)


def _report(trace: str, *formats: str) -> list[Golden]:
    """The report of a trace: the table by itself, so that its changes can be read."""
    name = Path(trace).name.split(".json")[0].split(".pftrace")[0]
    more = (*_several(f"report {trace}", "json", "csv", "markdown", *formats), f"COLUMNS=80 report {trace}")
    return [Golden(f"report/{name}.txt", (f"report {trace}",)), Golden(f"report/{name}.xz", more)]


_CPU = [f"traces/cpu-{name}.json.gz" for name in (
    "llama", "llama-generic", "llama-grammar", "llama-jump", "qwen", "qwen-generic", "qwen-grammar", "qwen-jump",
    "qwen-qwen",
)]  # fmt: skip
_QWEN, _GENERIC, _GRAMMAR = (f"traces/cpu-qwen{name}.json.gz" for name in ("", "-generic", "-grammar"))
_FOREIGN = [f"corpus/{name}" for name in (
    "traces/b200_vllm_eager.json.gz", "traces/h100_qwen1.5_0.5b.json.gz", "traces/mi300x_sglang_qwen3_8b_decode.json.gz",
    "traces/mi300x_vllm_decode_graph.json.gz", "traces/mi300x_vllm_piecewise_graph.json.gz",
    "traces/torch_compile_triton.json.gz", "traces/v100_resnet_ddp.json.gz", "native/cuda_graph.pftrace",
    "native/eager.pftrace", "native/monitor.pftrace", "graphs/mi300x_sglang_qwen3_8b_capture_bs32.json.gz",
    "pairs/h100_bert_small.json.gz", "pairs/h100_vit_base.json.gz", "pairs/mi300_bert_small.json.gz",
    "pairs/mi300_qwen1.5_0.5b.json.gz", "pairs/mi300_vit_base.json.gz", "engines/vllm_plain.json.gz",
    "engines/vllm_json_xgrammar.json.gz", "engines/vllm_json_llama_nostack.json.gz",
)]  # fmt: skip
# Whose pages are goldens too.
_PAGES = (_GENERIC, *(f"corpus/{name}" for name in (
    "traces/h100_qwen1.5_0.5b.json.gz", "traces/mi300x_vllm_piecewise_graph.json.gz", "native/eager.pftrace",
    "engines/vllm_json_xgrammar.json.gz",
)))  # fmt: skip
_BYS = ("module", "source", "operator", "kernel")
_REPLAY = (
    "report corpus/traces/mi300x_sglang_qwen3_8b_decode.json.gz "
    "--graph-capture corpus/graphs/mi300x_sglang_qwen3_8b_capture_bs32.json.gz"
)
_BERT = "corpus/pairs/h100_bert_small.json.gz corpus/pairs/mi300_bert_small.json.gz"
_H100, _NATIVE = "corpus/pairs/h100_bert_small.json.gz", "corpus/native/eager.pftrace"


def _queries(trace: str, *modules: str) -> tuple[str, ...]:
    return tuple(f"query {module} {trace}" for module in modules)


GOLDENS = [
    *(golden for trace in (*_CPU, *_FOREIGN) for golden in _report(trace, *(("html",) if trace in _PAGES else ()))),
    Golden("report/several.txt", (
        "report given/tiny.json given/tiny-2.json",
        "report given/tiny.json given/tiny-2.json --format json",
        "report traces --rows",
        "report traces --rows --format csv",
        "report traces --rows --format json",
        f"report {_QWEN} --format json -o a/base.json && report a given --rows",
        "report given/tiny.json --tokens 12 --molecules 4",
        "report given/tiny.json --tokens 12 --molecules 4 --format json",
        "report given/cut.json --partial",
        "report given/cut.json --partial --format json",
        "report given/none.json",
        f"report {_GENERIC} --fail-if 'drift_blocks>0' --fail-if 'launches_per_token>30' --fail-if 'wall_ns>1000s'",
        "report given/tiny.json -o a.json --fail-if 'wall_ns>2s'",
        "report given/tiny.json given/tiny-2.json --format markdown -o reports",
    )),
    Golden("by/cpu-qwen.xz", tuple(f"report {_QWEN} --by {by} --format json" for by in _BYS)),
    Golden("by/cpu-llama-generic.txt", (f"report {_CPU[1]} --by operator",)),
    *(
        Golden(f"by/{name}.{end}", tuple(
            f"report corpus/{trace} --by {by}{form}" for by in _BYS for form in forms
        ))
        for name, trace in (
            ("h100_bert_small", "pairs/h100_bert_small.json.gz"), ("eager", "native/eager.pftrace"),
            ("torch_compile_triton", "traces/torch_compile_triton.json.gz"),
        )
        for end, forms in (("txt", ("",)), ("xz", (" --format json", " --format csv")))
    ),
    Golden("by/others.xz", (
        "report corpus/pairs/h100_bert_small.json.gz --by module --format speedscope",
        "report corpus/pairs/h100_bert_small.json.gz --by source --format speedscope",
        "report corpus/pairs/h100_bert_small.json.gz --by module --format markdown",
        "report corpus/pairs/h100_bert_small.json.gz --by module --format html",
        "report corpus/pairs/mi300_qwen1.5_0.5b.json.gz --by module --format json",
        "report corpus/traces/mi300x_vllm_decode_graph.json.gz --by kernel --format json",
        "report corpus/engines/vllm_json_llama_nostack.json.gz --by module --format json",
    )),
    Golden("by/vllm_json_xgrammar.xz", ("report corpus/engines/vllm_json_xgrammar.json.gz --by source --format json",)),
    Golden("graphs/opened.txt", (_REPLAY, f"{_REPLAY} --by module")),
    Golden("graphs/opened.xz", (*_several(_REPLAY, "json"), *_several(f"{_REPLAY} --by operator", "json"))),
    Golden("compare/captured.txt", (f"compare {_QWEN} {_GENERIC}", f"COLUMNS=80 compare {_QWEN} {_GENERIC}")),
    Golden("compare/captured.xz", _several(f"compare {_QWEN} {_GENERIC}", "json", "csv", "markdown", "html")),
    Golden("compare/four.txt", (f"compare {_CPU[0]} {_CPU[1]} {_QWEN} {_GENERIC}",)),
    Golden("compare/four.xz", _several(f"compare {_CPU[0]} {_CPU[1]} {_QWEN} {_GENERIC}", "json")),
    Golden("compare/forced.txt", (f"compare {_GRAMMAR} traces/cpu-qwen-jump.json.gz",)),
    Golden("compare/foreign.txt", (f"compare {_BERT}", f"compare {_BERT} --tokens 10 --tokens 20 --molecules 2")),
    Golden("compare/foreign.xz", _several(f"compare {_BERT}", "json", "html")),
    Golden("compare/judged.txt", (
        f"compare {_QWEN} {_GENERIC} --fail-if 'drift_blocks>1000000' --format csv",
        f"compare {_QWEN} {_GENERIC} --fail-if 'wall_ns>+1%' --fail-if 'junk_tokens>0' --fail-if 'uncertain>5%'",
        f"compare {_QWEN} {_QWEN} --fail-if 'wall_ns>+0.1%' --fail-if 'launches_per_token>+5%'",
        f"compare {_QWEN} {_GENERIC} --predictions given/predictions.toml",
        f"compare {_QWEN} {_GENERIC} --predictions given/wrong.toml",
        f"report {_QWEN} -o base.json && compare base.json {_GENERIC}",
        f"compare {_QWEN} corpus/engines/vllm_plain.json.gz --anyway",
    )),
    Golden("compare/kernels.txt", (f"compare {_QWEN} {_GENERIC} --by kernel", f"compare {_BERT} --by kernel")),
    Golden("compare/kernels.xz", (
        f"compare {_QWEN} {_GENERIC} --by kernel --format json",
        f"compare {_BERT} --by kernel --format json",
        f"compare {_BERT} --by kernel --format csv",
        f"compare {_BERT} --by kernel --format html",
    )),
    Golden("ranks.txt", ("ranks corpus/ranks", "COLUMNS=80 ranks corpus/ranks", "report corpus/ranks")),
    Golden("ranks.xz", _several("ranks corpus/ranks", "json", "csv", "markdown", "html")),
    Golden("query.txt", (
        "queries", "queries launches", "queries molprof_launch",
        *_queries(_QWEN, "steps", "phases", "drift"),
        "query \"SELECT name, COUNT(*) AS n, SUM(dur) AS total_ns FROM slice GROUP BY name ORDER BY n DESC, name LIMIT 9\" "
        f"{_QWEN} {_GENERIC}",
        "query 'SELECT 1 AS one; SELECT 2 AS two' given/tiny.json",
        "query 'SELECT $a AS a, $b AS b' given/tiny.json -p a=1e6 -p b=text --format json",
    )),
    Golden("queries.xz", ("queries launches --sql", "queries idle_causes --sql")),
    Golden("query-foreign.txt", (
        *_queries(_NATIVE, "launches", "devices", "kernel_kinds", "host_syncs"),
        *_queries(_H100, "kernel_classes", "idle_causes", "short_kernels", "operators"),
        *_several(f"query memory_operations {_H100}", "json", "csv", "markdown"),
        f"query molprof_launch {_H100} --format csv",
    )),
    Golden("drift.txt", ("drift", "drift --tokenizer qwen -n 2 --placeholder 0.00,0.00,0.00 --decimals 2")),
    Golden("drift-data.txt", _several("drift --tokenizer llama -n 4", "json", "csv")),
    Golden("trim.txt", (
        f"trim {_QWEN} --steps 21:22 -o out.json.gz",
        f"trim {_GENERIC} --steps 21:22 --phases processor -o out.json",
        f"trim {_H100} --without python_function -o out.json.gz",
        f"trim {_H100} --categories kernel --from 1ms --to 2ms -o out.json.gz",
    )),
    Golden("bench.txt", (
        "bench show given/bench.jsonl", *_several("bench show given/bench.jsonl", "json", "csv", "markdown"),
        "recommend given/bench.jsonl", *_several("recommend given/bench.jsonl", "json", "csv"),
    )),
    Golden("presets.txt", ("presets", *_several("presets", "json", "csv"))),
    Golden("errors.txt", (
        "", "nothing", "reprot x", "--nope",
        "report", "report absent.json", "report given/empty", "report --nope x", "report given/tiny.json --format yaml",
        "report given/text.json", "report given/blank.json", "report given/object.json", "report given/number.json",
        "report given/cut.json", "report given/cut.json.gz", "report given/new.json", "report given/cut.json --by kernel",
        "report given/tiny.json -o given/old.txt", "report given/tiny.json -o given/tiny.json --force",
        "report given/tiny.json -o no/such/a.txt", "report given/tiny.json -o given",
        "report given/tiny.json given/tiny-2.json --format csv", "report given/tiny.json given/tiny.json -o out",
        "report given/tiny.json --tokens 0", "report given/tiny.json --tokens 1 --tokens 2",
        f"report {_QWEN} --tokens 5",
        "report given/tiny.json --fail-if 'nothing>1'", "report given/tiny.json --fail-if 'wall_ns'",
        "report given/tiny.json --fail-if 'kernels>+5%'",
        "report given/tiny.json --by shape", "report given/tiny.json --format speedscope",
        "report given/tiny.json --by kernel --fail-if 'kernels>1'", "report given/tiny.json --rows --by kernel",
        "report given/tiny.json given/tiny-2.json --graph-capture given/tiny.json",
        "report given/tiny.json --graph-capture given/tiny-2.json",
        "report given/tiny.json --trace-processor given/text.json", "report given/tiny.json --submit nowhere -o x.txt",
        "compare given/tiny.json", "compare given", "compare - -", "compare given/tiny.json absent.json",
        "compare given/tiny.json given/text.json", "compare given/tiny.json given/tiny-2.json --of step",
        "compare given/tiny.json given/tiny-2.json --by kernel --of step",
        "compare given/tiny.json given/tiny-2.json given/tiny.json --by kernel",
        f"compare {_QWEN} given/tiny.json --by kernel", "compare given/tiny.json given/tiny-2.json --predictions absent.toml",
        "compare given/tiny.json given/tiny-2.json --fail-if 'kernels>+x%'",
        "ranks given/empty", "ranks given/tiny.json", "ranks given/tiny.json given/tiny-2.json", "ranks absent",
        "query", "query launches", "query lanches given/tiny.json", "query 'SELEC 1' given/tiny.json",
        "query 'SELECT a FROM slice' given/tiny.json", "query 'SELECT $a' given/tiny.json",
        "query launches given/tiny.json -p x", "query launches given/tiny.json -p below_ns=1",
        "query absent.sql given/tiny.json", "query launches given/tiny.json --format parquet",
        "query 'SELECT 1; SELECT 2' given/tiny.json --format csv",
        "queries nothing", "queries --sql", "plot", "plot nothing given/tiny.json -o x.svg",
        "plot classes given/tiny.json -o x.txt", "plot waterfall given/tiny.json -o x.svg",
        "trim given/tiny.json", "trim given/tiny.json -o out.txt", "trim given/tiny.json --steps 5 -o out.json",
        "trim given/tiny.json --steps 1:2 -o out.json", "trim given/tiny.json --from 3x -o out.json",
        "trim given/tiny.json -o out.json", "open given/tiny.json given/tiny-2.json absent.json",
        "drift --tokenizer nothing", "drift --conformers absent.sdf", "drift --placeholder x", "drift -n 0",
        "recommend absent.jsonl", "recommend given/text.json", "bench show absent.jsonl", "bench show given/text.json",
        "bench nothing", "bench show given/bench.jsonl --plot nothing -o x.svg",
        "presets --config absent.toml", "sweep absent.toml", "jobs nothing", "collect nothing", "logs nothing",
        "capture", "capture --model qwen -o out.txt", "capture --model qwen -o a.json -n 0",
        "capture --model qwen -o a.json --window 5", "capture --model qwen -o a.json --placeholder 0.0,0.0,0.0",
        "capture --model qwen -o a.json --no-lp --processor generic", "capture --model qwen -o a.json --min-p 2",
        "capture --model qwen -o a.json --smiles absent.smi", "capture --model qwen -o a.json --processor nope",
        "capture --model no-such-model -o a.json", "demo -n 0",
    )),
]  # fmt: skip


class _Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


def run(command: str, folder: Path) -> str:
    """Run a command of a golden in an empty folder; its exit code, stderr, stdout and files as one text."""
    for name, place in (("traces", ROOT / "traces"), ("corpus", CORPUS)):
        if place:
            (folder / name).symlink_to(place)
    shutil.copytree(GIVEN, folder / "given")
    (folder / "given/empty").mkdir()
    before = {path: path.read_bytes() for path in folder.glob("given/*") if path.is_file()}
    parts = []
    for words in map(shlex.split, command.split(" && ")):
        columns = words.pop(0).partition("=")[2] if words[:1] and words[0].startswith("COLUMNS=") else None
        code, out, err = _called(words, folder, columns)
        text = _page(out) if "<!DOCTYPE html>" in out else out
        parts.append(
            "".join([f"exit code {code}\n", *(f"stderr: {line}".rstrip() + "\n" for line in err.splitlines()), text])
        )
    made = sorted(
        path for path in folder.glob("[!ct]*/**/*") if path.is_file() and before.get(path) != path.read_bytes()
    )
    made += sorted(path for path in folder.iterdir() if path.is_file())
    parts += [f"wrote {path.relative_to(folder)}: {_summary(path)}\n" for path in made]
    return _normal("".join(parts), folder)


def _called(arguments: Sequence[str], folder: Path, columns: str | None) -> tuple[int, str, str]:
    """The command line, in this process: exit code, stdout, and stderr."""
    out = (io.TextIOWrapper if columns is None else _Terminal)(io.BytesIO(), encoding="utf-8")
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with _unchanged_process(), redirect_stdout(out), redirect_stderr(err):
        os.chdir(folder)
        os.environ.update(COLUMNS=columns or "80", HF_HUB_OFFLINE="1")
        os.environ.pop("MOLPROF_TRACE_PROCESSOR", None)
        try:
            molprof(list(arguments))
        except SystemExit as ended:
            code = ended.code
    assert isinstance(code, int)
    return code, *(_text(stream) for stream in (out, err))  # type: ignore[return-value]


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    raw = stream.buffer
    assert isinstance(raw, io.BytesIO)
    return raw.getvalue().decode()


@contextmanager
def _unchanged_process() -> Iterator[None]:
    """Undo what the command line changes of its process, which ends with it elsewhere."""
    logger = logging.getLogger("molprof")
    kept_logger = logger.handlers, logger.propagate, logger.level
    environment, place, garbage, hook = dict(os.environ), Path.cwd(), gc.get_threshold(), sys.unraisablehook
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        with mock.patch("gc.freeze"):
            yield
    finally:
        os.chdir(place)
        os.environ.clear()
        os.environ.update(environment)
        gc.set_threshold(*garbage)
        sys.unraisablehook = hook
        for number, handler in handlers.items():
            signal.signal(number, handler)
        logger.handlers, logger.propagate = kept_logger[:2]
        logger.setLevel(kept_logger[2])


def _normal(text: str, folder: Path) -> str:
    """Replace what differs between machines, versions and days."""
    for place, name in ((str(folder), "FOLDER"), (CORPUS, "CORPUS"), (str(ROOT), "ROOT"), (str(Path.home()), "HOME")):
        if place:
            text = text.replace(place, name)
    return re.sub(rf"\b(molprof[ @]){re.escape(__version__)}", r"\1VERSION", text)


class _Page(html.parser.HTMLParser):
    """The text of a page, a line per paragraph, row and label of a plot; shortened cells with the whole name."""

    SKIPPED = ("style", "script")
    CELLS = ("td", "th", "dt")

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._skipping = 0
        self._full: str | None = None

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self._skipping += tag in self.SKIPPED
        self._full = dict(attributes).get("title")
        if tag == "h2":
            self.parts.append("\n## ")

    def handle_endtag(self, tag: str) -> None:
        self._skipping -= tag in self.SKIPPED
        if self._full:
            self.parts.append(f" [{self._full}]")
            self._full = None
        if tag in self.CELLS:
            self.parts.append(" | ")
        elif tag not in ("span", "button", "a", "tspan", "g"):
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._skipping:
            self.parts.append(re.sub(r"\s+", " ", data))


def _page(text: str) -> str:
    page = _Page()
    page.feed(text)
    lines = (line.strip() for line in "".join(page.parts).splitlines())
    return "\n".join(line for line in lines if line) + "\n"


def _summary(path: Path) -> str:
    """Of a trace its events and a digest, of another file its text."""
    data = path.read_bytes()
    data = gzip.decompress(data) if path.suffix == ".gz" else data
    digest = hashlib.sha256(data).hexdigest()[:16]
    if b'"traceEvents"' not in data:
        return f"\n{data.decode()}" if len(data) < _MOST_BYTES else f"sha256 {digest}"
    content = json.loads(data)
    counts = sorted(Counter(str(event.get("cat", event["ph"])) for event in content["traceEvents"]).items())
    return f"sha256 {digest}, keys {', '.join(sorted(content))}\n" + "".join(f"  {n:6} {name}\n" for name, n in counts)


def block(command: str, text: str) -> str:
    """A command and what it printed, as a golden file holds it. Lines that look like a command's are indented."""
    text = re.sub(r"^\$ ", " $ ", text, flags=re.MULTILINE)
    return f"{_HEAD}molprof {command}".rstrip() + f"\n{text.rstrip()}\n\n"


@functools.lru_cache(maxsize=4)
def stored(name: str) -> dict[str, str]:
    """The blocks of a golden file by their first line; none if there is no such file."""
    path = FOLDER / name
    if not path.exists():
        return {}
    data = path.read_bytes()
    text = (lzma.decompress(data) if path.suffix == ".xz" else data).decode()
    blocks = (f"{_HEAD}{part}" for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:])
    return {part.split("\n", 1)[0]: part for part in blocks}


def difference(expected: str, found: str) -> str:
    """The first lines in which two texts differ; empty if they are equal."""
    if expected == found:
        return ""
    old, new = expected.splitlines(), found.splitlines()
    same = next((n for n, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    first = max(same - 3, 0)
    window = slice(first, same + 4 * _DIFF_LINES)  # to compare all of two long texts takes minutes
    lines = list(difflib.unified_diff(old[window], new[window], "golden", f"now, from line {first + 1}", lineterm=""))
    more = [f"... {len(old):,} lines in all, {len(new):,} now"]
    return "\n".join(line[:300] for line in [*lines[:_DIFF_LINES], *more])


def text_now(golden: Golden) -> str:
    parts = []
    for command in golden.commands:
        with tempfile.TemporaryDirectory() as folder:
            parts.append(block(command, run(command, Path(folder).resolve())))
    return "".join(parts)


def _write(golden: Golden, text: str) -> None:
    path = FOLDER / golden.name
    path.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode()
    path.write_bytes(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME) if path.suffix == ".xz" else data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="beginnings of names of golden files; default: all")
    parser.add_argument("--write", action="store_true", help="make them anew")
    parser.add_argument("--show", metavar="NAME", help="print what a golden file holds")
    options = parser.parse_args()
    if options.show:
        sys.stdout.write("".join(stored(options.show).values()))
        return
    chosen = [item for item in GOLDENS if not options.names or item.name.startswith(tuple(options.names))]
    failed = False
    with tempfile.TemporaryDirectory() as cache:
        os.environ["MOLPROF_CACHE"] = cache
        for golden in chosen:
            if golden.needs_corpus and not CORPUS:
                sys.stderr.write(f"{golden.name} left alone: MOLPROF_CORPUS is not set\n")
                continue
            text = text_now(golden)
            if changed := difference("".join(stored(golden.name).values()), text):
                sys.stdout.write(f"{golden.name}\n{changed}\n")
                failed = True
                if options.write:
                    _write(golden, text)
    sys.exit(failed and not options.write)


if __name__ == "__main__":
    main()
