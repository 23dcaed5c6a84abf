"""What each wrong command line prints, and its exit code: one table, run in process.

A row is (arguments, exit code, message). The command runs in a folder that holds FILES, what is in
`tests/goldens/given` as `given/`, and the repository's traces as `traces/`. `NAME=value` before the arguments sets a
variable. The message is all of stderr without "molprof: error: "; FOLDER stands for the folder. A message of one line
is compared with the first line alone, which leaves out hints. `tests/goldens/errors.txt` has more wrong command lines
with their whole output; no row stands in both.
"""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest
from goldens import GIVEN, ROOT, called, normal

# Content of files by name; a row may name them. A name that ends in `/` is an empty folder, a path is a link to it.
FILES: dict[str, str | bytes | Path] = {
    "sub/": "",
    "text.toml": "a = \n",
    "bad.sql": b"SELECT \xff",
    "linked.json": Path("given/tiny.json"),
    "trace.svg": "{}",
    "grid.toml": "[grid]\nmodel = ['qwen']\n",
    "auto.toml": "[grid]\nmodel = ['qwen']\nprocessor = ['auto']\n",
    "wrong.toml": "[grid]\nmodel = ['qwen']\nn = ['x']\n",
    "other.toml": "command = 'query'\n[grid]\nmodel = ['qwen']\n",
}

_LOST = " is an input of this command, which would be lost"
_CHANGES = "such as elementwise=0.5x, mask_fill=0x, 'aten::cat=0.2x', launches=graph or syncs=none"
ERRORS: list[tuple[str, int, str]] = [
    # molprof
    ("reports", 2, "No such command 'reports'. Did you mean 'report'?\n  molprof --help shows what it takes"),
    # Outputs of any command: an input of it is not replaced, by force neither.
    ("report given/tiny.json --format csv -o no/such/out.csv", 2, "the directory no/such does not exist"),
    ("report absent.json -o /proc/out.json", 2, "cannot write /proc/out.json: No such file or directory"),
    (f"report absent.json -o {'n' * 300}", 2, f"cannot write {'n' * 300}: File name too long"),
    ("report given/tiny.json -o /dev/null --force", 2, "/dev/null is not a regular file"),
    ("report given/tiny.json -o linked.json --force", 2, f"linked.json{_LOST}"),
    ("report given/tiny.json --rows -o given/tiny.json --force", 2, f"given/tiny.json{_LOST}"),
    ("report given/tiny.json given/run.json -o given --format json --force", 2, f"given/tiny.json{_LOST}"),
    ("compare given/run.json given/tiny.json -o given/tiny.json --force", 2, f"given/tiny.json{_LOST}"),
    ("query launches given/tiny.json -o given/tiny.json --force", 2, f"given/tiny.json{_LOST}"),
    ("ranks given/run.json given/tiny.json -o given/tiny.json --force", 2, f"given/tiny.json{_LOST}"),
    ("ranks given -o given/tiny.json --force", 2, f"given/tiny.json{_LOST}"),
    ("plot classes trace.svg -o trace.svg --force", 2, f"trace.svg{_LOST}"),
    # report
    ("report given/empty --rows", 2, "no traces in given/empty"),
    ("report given/run.json --molecules 1", 2, "--molecules is for foreign traces; given/run.json records its own"),
    *(
        (f"report given/tiny.json --fail-if '{text}'", 2, message)
        for text, message in (
            ("launches=5", "'launches=5' is not a threshold"),
            ("launches>five", "'launches>five' is not a threshold"),
            ("launches>nan", "'launches>nan' is not a threshold"),
            ("uncertain<5%", "'uncertain<5%' is not a threshold"),
            ("uncertain>5", "'uncertain>5' is not a threshold"),
            ("uncertain>+5%", "'uncertain>+5%' is not a threshold"),
            ("uncertain>=5%", "'uncertain>=5%' is not a threshold"),
            (
                "lanches_per_token>5",
                "'lanches_per_token>5': no figure 'lanches_per_token'\n  did you mean "
                "launches_per_token, ns_per_token, launches_per_step, launches_per_molecule?",
            ),
            ("vendor>0", "'vendor>0': no figure 'vendor'"),
            ("wall_ns>5", "'wall_ns>5': wall_ns is a time\n  give it a unit (ns us ms s), or a change such as +5%"),
            ("wall_ns>5%", "'wall_ns>5%': wall_ns is a time"),
            ("junk_tokens>5%", "'junk_tokens>5%': junk_tokens has no unit %\n  a change has a sign: +5%"),
            ("junk_tokens>5ms", "'junk_tokens>5ms': junk_tokens has no unit ms\n  give a number without unit"),
            ("junk_tokens>+5", "'junk_tokens>+5': a change must be in percent"),
        )
    ),
    # compare
    (
        "compare given/tiny.json given/tiny-2.json --tokens 1 --tokens 2 --tokens 3",
        2,
        "--tokens was given 3 times, for 2 foreign traces",
    ),
    ("compare given/tiny.json given/tiny-2.json --fail-if 'uncertain<5%'", 2, "'uncertain<5%' is not a threshold"),
    (
        "compare given/run.json traces/cpu-qwen.json.gz --by kernel",
        3,
        "given/run.json records GPU work and traces/cpu-qwen.json.gz does not\n  compare without --by kernel",
    ),
    # ranks
    # query
    ("query launches given/tiny.json -p a=1 -p a=2", 2, "Invalid value for '-p' / '--param': a is given twice"),
    (
        "query qqqqqq given/tiny.json",
        2,
        "no module, table or file 'qqqqqq', and no SQL\n  molprof queries lists the modules",
    ),
    (
        "report given/run.json --by shape --peak bf16=fast",
        2,
        "--peak bf16=fast: not NAME=NUMBER\n  memory=TB_PER_S, or TFLOP/s of dense products of one kind of number: "
        "bf16=989; memory, bf16, fp16, tf32, fp8, int8, fp32, fp64",
    ),
    (
        "report given/run.json --peak bf16=989",
        2,
        "--peak goes with --by shape\n  molprof report TRACE --by shape --peak NAME=NUMBER",
    ),
    (
        "replay given/run.json",
        3,
        "given/run.json records no shapes of operators\n  molprof capture --shapes and "
        "torch.profiler.profile(record_shapes=True) record them",
    ),
    (
        "replay given/run.json --script a.py",
        2,
        "--script writes one operator\n  --op N; molprof replay TRACE lists them",
    ),
    ("report given/run.json --what-if elementwise", 2, f"'elementwise' is no change\n  {_CHANGES}"),
    (
        "report given/run.json --what-if gpu=-1x",
        2,
        f"'gpu=-1x' is no change: '-1x' is no factor from 0 on\n  {_CHANGES}",
    ),
    ("report given/run.json --what-if launches=0x", 2, "'launches=0x' is no change\n  launches=graph"),
    (
        "report given/run.json --by module --what-if gpu=0x",
        2,
        "--what-if goes with --by path\n  molprof report TRACE --what-if CHANGES",
    ),
    (
        "report traces/cpu-qwen.json.gz --what-if nothing=0x",
        2,
        "nothing=0x selects nothing of this trace\n  classes of GPU work and phases here: bookkeeping, forward, "
        "processor, sampling; or an operator or Python function, with * for any text",
    ),
    (
        "report traces/cpu-qwen.json.gz --by shape",
        3,
        "traces/cpu-qwen.json.gz records no GPU work\n  molprof report --by operator shows its operators",
    ),
    ("query bad.sql given/tiny.json", 2, "bad.sql is not UTF-8 text: byte 7 is 0xff"),
    (
        "query small_operations given/tiny.json -p below_ns=abc",
        2,
        "-p below_ns=abc: not a number\n  such as -p below_ns=1000",
    ),
    ("query molprof_small_operations given/tiny.json -p below_ns=1e", 2, "-p below_ns=1e: not a number"),
    ("query 'CREATE PERFETTO VIEW own AS SELECT 2 AS two' given/tiny.json", 2, "the query gives no result"),
    (
        "query \"SELECT '\x1b[31m' FROM nowhere\" given/tiny.json",
        2,
        "the query failed at line 1 col 1: no such table: nowhere\n"
        "     1 | SELECT '\\x1b[31m' FROM nowhere\n       | ^",
    ),
    # trim
    ("trim given/run.json --steps 7:9 -o out.json", 2, "given/run.json has no recorded steps 7:9 of batch 0"),
    ("trim given/run.json --steps 1 --batch 3 -o out.json", 2, "given/run.json has no recorded steps 1:1 of batch 3"),
    ("trim given/run.json --phases forwards -o out.json", 2, "given/run.json has no recorded phase 'forwards'"),
    ("trim given/run.json --categories kernels -o out.json", 2, "given/run.json has no category 'kernels'"),
    (
        "trim given/run.json --from 10s --categories kernel -o out.json",
        2,
        "no event of given/run.json would be left\n  its events start within 0.178 ms",
    ),
    (
        "trim given/run.json --steps 3-4 -o out.json",
        2,
        "Invalid value for '--steps': '3-4' is not A:B, such as 10:12, or one number",
    ),
    ("trim given/run.json --steps 4:3 -o out.json", 2, "Invalid value for '--steps': '4:3' ends before it begins"),
    ("trim given/run.json --from 2ms --to 1ms -o out.json", 2, "--to is not after --from"),
    ("trim given/run.json --phases forward --batch 1 -o out.json", 2, "--batch requires --steps"),
    ("trim given/run.json --steps 2 -o given/run.json --force", 2, f"given/run.json{_LOST}"),
    # plot, open
    ("open -", 2, "standard input (-) can be read once only: name a file"),
    ("open given/tiny.json --step 1 --token 2", 2, "--token and --step exclude each other"),
    (
        "open absent.json",
        2,
        "reading absent.json\nmolprof: error: cannot read absent.json: No such file or directory\n"
        "  give the path of a trace; - is standard input",
    ),
    (
        "open given/run.json given/run-2.json --step 9",
        2,
        "reading given/run.json and given/run-2.json\nmolprof: error: given/run.json has no recorded step 9\n"
        "  give --step one from 1 to 2",
    ),
    # mcp
    # capture, demo
    ("capture --model qwen,llama -o runs.json", 2, "runs.json is one file, for 2 runs\n  name a folder with -o DIR"),
    ("capture --model qwen, -o a.json", 2, "--model 'qwen,' names nothing between its commas"),
    ("demo -o given/tiny.json", 2, "given/tiny.json is not a directory\n  name another with -o DIR"),
    (
        "capture --model qwen -o a.json --disagreement",
        2,
        "disagreement is between the model and a logits processor, and this run has none",
    ),
    # bench, recommend
    ("bench sdpa", 2, "Missing option '-o'; --dry-run shows the cases without it."),
    ("bench sdpa --shape 1x2 -o x", 2, "'1x2' is no shape BATCHxHEADSxKVHEADSxSEQUENCExSIZE"),
    ("bench sdpa --backend , -o x", 2, "Invalid value for '--backend': names no value"),
    ("bench sdpa --mask magic -o x", 2, "Invalid value for '--mask': 'magic' is not one of none, causal, padding, all"),
    ("bench matrix --batch-size a -o x", 2, "Invalid value for '--batch-size': 'a' is not a list of whole numbers"),
    ("bench matrix --batch-size 0 -o x", 2, "batch size 0 is below 1"),
    ("bench processors --processor nope -o x", 2, "no processor 'nope'"),
    ("bench processors --processor auto -o x", 2, "no processor 'auto'"),
    (
        "bench matrix --memory-limit much -o x",
        2,
        "Invalid value for '--memory-limit': 'much' is not a size such as 12G",
    ),
    ("bench matrix --memory-limit 0 -o x", 2, "Invalid value for '--memory-limit': '0' is not above 0"),
    ("bench matrix --prompts absent.txt -o x", 2, "Invalid value for '--prompts': File 'absent.txt' does not exist."),
    ("bench sdpa -o no/x.jsonl", 2, "the directory no does not exist"),
    ("bench sdpa -o .", 2, ". is not a regular file"),
    (
        "bench sdpa -o given/old.txt",
        2,
        "given/old.txt line 1 is not JSON: JSON is malformed: invalid character (byte 0)",
    ),
    ("bench sdpa --retry -o x", 2, "--retry requires --resume"),
    ("bench sdpa --tasks 2 -o x", 2, "--tasks requires --submit NAME"),
    ("bench sdpa --share 3/2 -o x", 2, "Invalid value for '--share': '3/2' is not K/N, such as 1/4"),
    ("bench sdpa --share 1/2 --submit slurm -o x", 2, "--share selects cases to run here; on a cluster, use --tasks N"),
    ("bench sdpa --limit nan -o x", 2, "Invalid value for '--limit': nan is not a number of seconds"),
    ("bench batch --model qwen,./absent -o x", 2, "no folder ./absent to load the model from"),
    ("bench batch --tokenizer ./absent -o x", 2, "no folder ./absent to load the tokenizer from"),
    ("bench batch --processor-arg a=1 -o x", 2, "--processor-arg is for a processor of your own"),
    ("bench show given/bench.jsonl --plot batch", 2, "--plot batch requires -o OUT that ends in .png, .svg or .pdf"),
    (
        "bench show given/bench.jsonl --plot batch --format csv -o x.svg",
        2,
        "--format is for tables; the ending of OUT selects the format of a plot",
    ),
    # sweep, jobs, collect, logs, and options that submit
    (
        "sweep given/old.txt",
        2,
        "given/old.txt is not TOML: Expected '=' after a key in a key/value pair (at line 1, column 4)",
    ),
    ("sweep grid.toml --limit 0", 2, "Invalid value for '--limit': 0.0 is not in the range x>0."),
    (
        "sweep grid.toml --submit slurm --limit 5",
        2,
        "--limit is for cases that run here; on a cluster, use --slurm time=0:30:00",
    ),
    ("sweep auto.toml --dry-run", 2, "auto.toml, line 3: no processor 'auto'"),
    ("sweep wrong.toml --dry-run", 2, "wrong.toml, line 3: Invalid value for '-n': 'x' is not a valid integer."),
    ("sweep other.toml --dry-run", 2, "other.toml, line 1: command is 'query', expected one that runs cases"),
    ("jobs --cancel", 2, "--requeue and --cancel require the ID of a job; molprof jobs lists them"),
    ("jobs 1 --cancel --requeue", 2, "--requeue and --cancel exclude each other"),
    ("collect 1", 2, "no job '1' in FOLDER/.molprof/jobs"),
    ("logs 1", 2, "no job '1' in FOLDER/.molprof/jobs"),
    ("report given/tiny.json --detach", 2, "--detach requires --submit NAME"),
    ("report given/tiny.json --slurm cpus=1", 2, "--slurm requires --submit NAME"),
    (
        "report given/tiny.json --submit nowhere -o x",
        2,
        "unknown cluster 'nowhere'; known: slurm (and no molprof.toml here or above)",
    ),
    (
        "report given/tiny.json --submit slurm --slurm cpus=x -o x",
        2,
        "--slurm cpus is 'x', expected a whole number of at least 1",
    ),
    ("report given/tiny.json given/tiny-2.json -o given/tiny.json", 2, "given/tiny.json is not a folder"),
    ("capture --model qwen --submit slurm", 2, "a capture on a cluster needs a name for its trace"),
    ("ranks given/tiny.json --submit slurm", 2, "--submit requires --parts DIR, a folder that the cluster's nodes see"),
    *(
        (f"capture --model llama -o x.json --prompt-format '{text}'", 2, f"--prompt-format '{text}' {problem}")
        for text, problem in [
            ("tell me", "has no {smiles}\n  as in [SMILES]{smiles}[/SMILES]"),
            ("{smiles} {name}", "has an unknown {name}"),
            ("{smiles", "is no pattern: expected '}' before end of string; double a brace that is text: {{"),
            ("{smiles!r}", "is no pattern: more than a name in {smiles}; double a brace that is text: {{"),
        ]
    ),
    *(
        (f"capture --model llama -o x.json --answer-format '{text}'", 2, f"--answer-format '{text}' {problem}")
        for text, problem in [
            ("x", "needs {atom}, {x}, {y} and {z} once, in this order, not none"),
            ("{atom}<{y},{x},{z}>...", "needs {atom}, {x}, {y} and {z} once, in this order, not {atom}, {y}, {x}, {z}"),
            ("{atom}<{x},{y},{z}>", "needs one ... after the block, for the other atoms"),
            ("{atom}<{x},{y};{z}>...", "has two separators, ',' and ';'; write one"),
            ("{atom}{x},{y},{z}>...", "opens no block before {x}"),
            ("{atom}<{x}{y}{z}>...", "has nothing between {x} and {y}"),
            ("{atom}<{x},{y},{z}...", "closes no block after {z}"),
            ("{atom}\u27e8{x},{y},{z}\u27e9...", "has other than ASCII characters around its numbers"),
            ("{atom}<{x}-{y}-{z}>...", "has '-' beside a number, which may be a part of it"),
            ("{atom} {x} {y} {z} ...", "has ' ' both around a block and between its numbers"),
            ("{atom}({x},{y},{z})...", "has blocks, (1.0,..., that read like parts of a molecule"),
            ("{atom}[{x},{y},{z}]...", "has blocks, [1.0,..., that read like parts of a molecule"),
        ]
    ),
    (
        "capture --model llama -o x.json --processor generic --processor-arg a=1",
        2,
        "--processor-arg is for a processor of your own",
    ),
    (
        "capture --model llama -o x.json --prompts text.toml",
        2,
        "plain-text prompts have no template to bound their answers",
    ),
    (
        "capture --model llama -o x.json --prompts text.toml --smiles text.toml --max-new-tokens 3",
        2,
        "molecules and plain-text prompts exclude each other",
    ),
    # bench, recommend
    (
        "bench batch --dry-run --processor string:Formatter --processor-arg a=1",
        2,
        "string:Formatter has no parameter 'a'",
    ),
    # sweep, jobs, collect, logs
    # drift, presets, doctor, wheels
    (
        "wheels --have torch==2.11.0 -o w --python 3",
        2,
        "Invalid value for '--python': '3' is not a version such as 3.12\n  molprof wheels --help shows what it takes",
    ),
    (
        "wheels --have torch==2.11.0 -o w --processors grammar",
        2,
        "Invalid value for '--processors': 'grammar' needs no package of its own; xgrammar and llguidance do\n"
        "  molprof wheels --help shows what it takes",
    ),
    ("wheels --have torch==2.11.0 -o none/x", 2, "the directory none does not exist"),
    ("wheels --have torch==2.4 -o w", 2, "torch 2.4 there does not fit: molprof requires torch>=2.6"),
    ("drift --tokenizer /no/such", 2, "no tokenizer '/no/such'"),
    ("drift --tokenizer sub", 2, "the folder sub has no tokenizer.json"),
    (
        "drift --placeholder 0.0,0.0,.0",
        2,
        "'0.0,0.0,.0' is no placeholder: expected three numbers with commas between them",
    ),
    ("doctor --limit 0", 2, "Invalid value for '--limit': 0.0 is not in the range x>0."),
]


@pytest.mark.parametrize(("line", "code", "message"), ERRORS, ids=[row[0] for row in ERRORS])
def test_a_wrong_command_line(
    line: str, code: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(GIVEN, tmp_path / "given")
    (tmp_path / "given/empty").mkdir()
    (tmp_path / "traces").symlink_to(ROOT / "traces")
    for name, content in FILES.items():
        path = tmp_path / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if isinstance(content, Path):
            path.symlink_to(content)
        elif not name.endswith("/"):
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
    words = shlex.split(line)
    while words and words[0].partition("=")[0].isupper():
        name, _, value = words.pop(0).partition("=")
        monkeypatch.setenv(name, value)
    before = _files(tmp_path)
    found, out, err = called(words, tmp_path)
    err = normal(err, tmp_path).removeprefix("molprof: error: ").removesuffix("\n")
    if "\n" not in message:
        err = err.partition("\n")[0]
    assert (found, err, out) == (code, message, "")
    assert _files(tmp_path) == before, "a wrong command line changed a file"


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_no_row_stands_twice() -> None:
    lines = [row[0] for row in ERRORS]
    assert sorted({line for line in lines if lines.count(line) > 1}) == []
    shown = (ROOT / "tests/goldens/errors.txt").read_text().splitlines()
    assert [line for line in lines if f"$ molprof {line}" in shown] == []
