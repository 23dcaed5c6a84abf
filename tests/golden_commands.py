"""The golden files and the commands of each, over `traces/`, MOLPROF_CORPUS (`corpus/`) and `tests/goldens/given`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from molprof.cli import cli
from molprof.commands.command import Command


@dataclass(frozen=True)
class Golden:
    """A golden file: its name in `FOLDER`, and the commands that it holds, without their first word.

    `COLUMNS=80 report ...` is run as on a terminal of that width, and `a && b` is one command after the other. Of
    commands that measure (`varies`), only what does not depend on time is kept.
    """

    name: str
    commands: tuple[str, ...]
    varies: bool = False

    @property
    def needs_corpus(self) -> bool:
        return any("corpus/" in command for command in self.commands)


def _several(command: str, *formats: str) -> tuple[str, ...]:
    return tuple(f"{command} --format {name}" for name in formats)


def _report(trace: str, *formats: str) -> list[Golden]:
    """The report of a trace: the table by itself, so that its changes can be read."""
    name = Path(trace).name.split(".json")[0].split(".pftrace")[0]
    more = (*_several(f"report {trace}", "json", *formats), f"COLUMNS=80 report {trace} --all")
    return [Golden(f"report/{name}.txt", (f"report {trace}",)), Golden(f"report/{name}.xz", more)]


_LLAMA, _LLAMA_GENERIC, _JUMP = (f"traces/cpu-llama{name}.json.gz" for name in ("", "-generic", "-jump"))
_QWEN, _GENERIC, _GRAMMAR = (f"traces/cpu-qwen{name}.json.gz" for name in ("", "-generic", "-grammar"))
_FOREIGN = [f"corpus/{name}" for name in (
    "traces/b200_vllm_eager.json.gz", "traces/h100_qwen1.5_0.5b.json.gz",
    "traces/mi300x_sglang_qwen3_8b_decode.json.gz", "traces/mi300x_vllm_decode_graph.json.gz",
    "traces/mi300x_vllm_piecewise_graph.json.gz", "traces/torch_compile_triton.json.gz",
    "traces/v100_resnet_ddp.json.gz", "native/cuda_graph.pftrace", "native/eager.pftrace", "native/monitor.pftrace",
    "graphs/mi300x_sglang_qwen3_8b_capture_bs32.json.gz",
    "pairs/h100_bert_small.json.gz", "pairs/mi300_bert_small.json.gz", "pairs/mi300_qwen1.5_0.5b.json.gz",
    "engines/vllm_plain.json.gz", "engines/vllm_json_xgrammar.json.gz", "engines/vllm_json_llama_nostack.json.gz",
)]  # fmt: skip
# Whose other formats are goldens too.
_WHOLE = (_GENERIC, *(f"corpus/{name}" for name in (
    "traces/h100_qwen1.5_0.5b.json.gz", "traces/mi300x_vllm_piecewise_graph.json.gz", "native/eager.pftrace",
    "engines/vllm_json_xgrammar.json.gz",
)))  # fmt: skip
_BYS = ("module", "source", "operator", "kernel")
_REPLAY = (
    "corpus/traces/mi300x_sglang_qwen3_8b_decode.json.gz "
    "--graph-capture corpus/graphs/mi300x_sglang_qwen3_8b_capture_bs32.json.gz"
)
_BERT = "corpus/pairs/h100_bert_small.json.gz corpus/pairs/mi300_bert_small.json.gz"
_H100, _NATIVE = "corpus/pairs/h100_bert_small.json.gz", "corpus/native/eager.pftrace"


_EAGER, _GRAPH = "given/gpu-eager.json.gz", "given/gpu-graph.json.gz"


def _queries(trace: str, *modules: str) -> tuple[str, ...]:
    return tuple(f"query {module} {trace}" for module in modules)


def _help(command: click.Command, name: str = "") -> list[str]:
    context = click.Context(command, **cli.context_settings)
    if isinstance(command, click.Group):
        own = {item: command.get_command(context, item) for item in command.list_commands(context)}
    else:
        own = getattr(command, "commands", {})
    found = [(item, f"{name} {key}".strip()) for key, item in own.items()]
    pages = ["--help-all" if isinstance(command, Command) else "--help", *(["--help"] if name == "capture" else [])]
    return [*(f"{name} {page}".strip() for page in pages), *(line for item in found for line in _help(*item))]


# Wrong command lines, each with its exit code and all that it prints; no file is changed.
MISTAKES = (
    "reports", "report given/tiny.json --format csv -o no/such/out.csv", "report absent.json -o /proc/out.json",
    "report given/tiny.json -o /dev/null --force", "report rows given/tiny.json -o given/tiny.json --force",
    "report given/tiny.json given/run.json -o given --format json --force",
    "compare given/run.json given/tiny.json -o given/tiny.json --force",
    "query launches given/tiny.json -o given/tiny.json --force",
    "ranks given/run.json given/tiny.json -o given/tiny.json --force", "ranks given -o given/tiny.json --force",
    "report plot classes given/trace.svg -o given/trace.svg --force", "report rows given/empty",
    "report given/run.json --molecules 1",
    "compare given/tiny.json given/tiny-2.json --tokens 1 --tokens 2 --tokens 3",
    "compare given/tiny.json given/tiny-2.json --fail-if 'uncertain<5%'",
    "compare given/run.json traces/cpu-qwen.json.gz --by kernel", "query launches given/tiny.json -p a=1 -p a=2",
    "query qqqqqq given/tiny.json", "report by shape given/run.json --peak bf16=fast",
    "replay given/run.json", "replay given/run.json --script a.py",
    "report by module given/run.json --peak bf16=989",
    "report by module given/run.json --peak bf16=989 --graph-capture given/run.json",
    "report given/run.json --peak bf16=989", "report by path given/run.json --what-if elementwise",
    "report by path given/run.json --what-if gpu=-1x", "report by path given/run.json --what-if gpu=1e308x",
    "report by path given/run.json --what-if ''", "report ''",
    "report by path traces/cpu-qwen.json.gz --what-if launches=graph", "report given/run.json --what-if gpu=0x",
    "report by shape given/run.json --peak bf16=1e-300", "capture --model qwen -o ''",
    "replay given/run.json --op 1 --script a.py -o b.json", "report by path given/run.json --what-if launches=0x",
    "capture --model qwen --forced-runs -o a.json", "capture --model qwen --lp --engine continuous -o a.json",
    "capture --model qwen --processor grammar --placeholder 0.0,0.0,0.0 -o a.json",
    "capture --model qwen --lp --prompts given/text.json --max-new-tokens 4 -o a.json",
    "report by module given/run.json --what-if gpu=0x", "report by path traces/cpu-qwen.json.gz --what-if nothing=0x",
    "predict traces/cpu-qwen.json.gz --device h100", "predict traces/cpu-qwen.json.gz --device x1",
    "report by shape traces/cpu-qwen.json.gz", "query given/bad.sql given/tiny.json",
    "query small_operations given/tiny.json -p below_ns=abc",
    "query molprof_small_operations given/tiny.json -p below_ns=1e",
    "query 'CREATE PERFETTO VIEW own AS SELECT 2 AS two' given/tiny.json",
    "query \"SELECT '\u001b[31m' FROM nowhere\" given/tiny.json", "trim given/run.json --steps 7:9 -o out.json",
    "trim given/run.json --steps 1 --batch 3 -o out.json", "trim given/run.json --phases forwards -o out.json",
    "trim given/run.json --categories kernels -o out.json",
    "trim given/run.json --from 10s --categories kernel -o out.json", "trim given/run.json --steps 3-4 -o out.json",
    "trim given/run.json --steps 4:3 -o out.json", "trim given/run.json --from 2ms --to 1ms -o out.json",
    "trim given/run.json --phases forward --batch 1 -o out.json",
    "trim given/run.json --steps 2 -o given/run.json --force", "open -", "open given/tiny.json --step 1 --token 2",
    "open absent.json", "open given/run.json given/run-2.json --step 9", "capture --model qwen,llama -o runs.json",
    "capture --model qwen, -o a.json", "demo -o given/tiny.json", "capture --model qwen -o a.json --disagreement",
    "bench sdpa", "bench sdpa --shape 1x2 -o x", "bench sdpa --backend , -o x", "bench sdpa --mask magic -o x",
    "sweep matrix --batch-size a", "sweep matrix --batch-size 0", "sweep processors --processor nope",
    "sweep processors --processor auto", "sweep matrix --memory-limit much", "sweep nothing",
    "sweep matrix --memory-limit 0", "sweep matrix --modle qwen", "sweep matrix --prompts absent.txt",
    "sweep batch --processor-arg a=1", "sweep matrix --model", "bench sdpa -o no/x.jsonl",
    "bench sdpa -o .", "bench sdpa -o given/old.txt", "bench sdpa --retry -o x", "bench sdpa --tasks 2 -o x",
    "bench sdpa --share 3/2 -o x", "bench sdpa --share 1/2 --submit slurm -o x", "bench sdpa --limit nan -o x",
    "sweep batch --model qwen,./absent", "sweep batch --tokenizer ./absent", "bench batch --model qwen -o x",
    "sweep show given", "bench show given/bench.jsonl --plot batch",
    "bench show given/bench.jsonl --plot batch --format csv -o x.svg", "sweep given/old.txt",
    "sweep given/grid.toml --limit 0", "sweep given/grid.toml --submit slurm --limit 5",
    "sweep given/auto.toml --dry-run", "sweep given/wrong-grid.toml --dry-run", "sweep given/other.toml --dry-run",
    "jobs cancel", "jobs cancel 1", "jobs collect 1", "jobs logs 1", "collect 1", "report given/tiny.json --detach",
    "report given/tiny.json --slurm cpus=1", "report given/tiny.json --submit nowhere -o x",
    "report given/tiny.json --submit slurm --slurm cpus=x -o x",
    "report given/tiny.json given/tiny-2.json -o given/tiny.json", "capture --model qwen --submit slurm",
    "ranks given/tiny.json --submit slurm", "capture --model llama -o x.json --processor generic --processor-arg a=1",
    "capture --model llama -o x.json --prompts given/text.toml",
    "capture --model llama -o x.json --prompts given/text.toml --smiles given/text.toml --max-new-tokens 3",
    "capture --model qwen -o x.json --timed-only --full",
    "wheels --have torch==2.11.0 -o w --python 3", "wheels --have torch==2.11.0 -o w --processors grammar",
    "wheels --have torch==2.11.0 -o none/x", "wheels --have torch==2.4 -o w", "drift --tokenizer /no/such",
    "drift --regex '(a)\\1'", "drift --regex '(?=a)b'", "drift --regex '('", "drift --choices a -n 3",
    "drift --choices ''", "drift --choices a --placeholder 0,0,0",
    "drift --tokenizer given/empty", "drift --placeholder 0.0,0.0,.0", "doctor --limit 0",
    f"report absent.json -o {'n' * 300}",
    *(f"report given/tiny.json --fail-if '{text}'" for text in (
        "launches=5", "launches>five", "launches>nan", "uncertain<5%", "uncertain>5", "uncertain>+5%", "uncertain>=5%",
        "lanches_per_token>5", "vendor>0", "wall_ns>5", "wall_ns>5%", "junk_tokens>5%", "junk_tokens>5ms",
        "junk_tokens>+5",
    )),
    *(f"capture --model llama -o x.json --prompt-format '{text}'" for text in (
        "tell me", "{smiles} {name}", "{smiles", "{smiles!r}",
    )),
    *(f"capture --model llama -o x.json --answer-format '{text}'" for text in (
        "x", "{atom}<{y},{x},{z}>...", "{atom}<{x},{y},{z}>", "{atom}<{x},{y};{z}>...", "{atom}{x},{y},{z}>...",
        "{atom}<{x}{y}{z}>...", "{atom}<{x},{y},{z}...", "{atom}\u27e8{x},{y},{z}\u27e9...", "{atom}<{x}-{y}-{z}>...",
        "{atom} {x} {y} {z} ...", "{atom}({x},{y},{z})...", "{atom}[{x},{y},{z}]...",
    )),
    *(f"capture --model qwen -o a.json {options}" for options in (
        "--batch-size -1", "--repeats 0", "--warmup -1", "--max-new-tokens 0", "--window 3:2", "--window 3:4 --full",
        "--window 3:1000000000", "--max-cache-length 99", "--pad-multiple 0", "--pad-multiple 2 --drop-finished",
        "--threads 1025", "--template-threads 1025", "--temperature 0.0", "--temperature inf", "--top-p 1.5",
        "--top-k 0", "--seed -1", "--seed 4294967296",
    )),
    *(f"capture --model qwen -o a.json --size {size}" for size in (
        "7b", "''", "layers=5,layers=6", "layers=-5", "layers=0", "layers=10000000000", "'layers=\u0665'", "depth=5",
        "tied=1", "layers=3", "hidden=191", "mlp=511", "head_dim=80", "heads=4,kv_heads=4", "heads=5", "head_dim=33",
    )),
    "capture --model gpt -o a.json --size 0.6b", "capture --model llama -o a.json --size hidden=200",
    "capture --model '' -o a.json",
)  # fmt: skip

GOLDENS = [
    Golden("help.txt", tuple(_help(cli))),
    *(
        golden
        for trace in (_LLAMA, _JUMP, _GENERIC, _GRAMMAR, *_FOREIGN)
        for golden in _report(trace, *(("csv", "markdown", "html") if trace in _WHOLE else ()))
    ),
    # A captured run with a GPU, small enough to be counted by hand: tests/tiny_trace.py makes it.
    Golden("report/run.txt", ("report given/run.json --all", "report given/run.json --fail-if uncertain")),
    Golden("report/run.xz", _several("report given/run.json", "json", "csv", "html")),
    Golden("compare/run.txt", ("compare given/run.json given/run-2.json --all",)),
    Golden("compare/run.xz", _several("compare given/run.json given/run-2.json", "json", "csv")),
    # Captures of a CPU to which a GPU's calls and work were added: eager attention in two streams, and graphs.
    Golden("report/gpu.txt", (f"report {_EAGER} --all", f"report {_GRAPH} --all")),
    Golden("report/gpu.xz", (*_several(f"report {_EAGER}", "json"), *_several(f"report {_GRAPH}", "json", "html"))),
    Golden("compare/gpu.txt", (f"compare {_EAGER} {_GRAPH} --all",)),
    Golden("report/several.txt", (
        "report given/tiny.json given/tiny-2.json",
        "report given/tiny.json given/tiny-2.json --format json",
        "report rows traces",
        "report rows traces --format csv",
        "report rows traces --format json",
        f"report {_QWEN} --format json -o a/base.json && report rows a given",
        "report given/tiny.json --tokens 12 --molecules 4",
        "report given/tiny.json --tokens 12 --molecules 4 --format json",
        "report given/cut.json --partial",
        "report given/cut.json --partial --format json",
        "report given/none.json",
        f"report {_GENERIC} --fail-if 'drift_blocks>0' --fail-if 'launches_per_token>30' --fail-if 'wall_ns>1000s'",
        "report given/tiny.json -o a.json --fail-if 'wall_ns>2s'",
        "report given/tiny.json given/tiny-2.json --format markdown -o reports",
    )),
    Golden("by/cpu-qwen.xz", (f"report by module {_QWEN} --format json",)),
    Golden("by/cpu-llama-generic.txt", (f"report by operator {_LLAMA_GENERIC}",)),
    *(
        Golden(f"by/{name}.txt", tuple(f"report by {by} corpus/{trace}" for by in _BYS))
        for name, trace in (
            ("h100_bert_small", "pairs/h100_bert_small.json.gz"), ("eager", "native/eager.pftrace"),
            ("torch_compile_triton", "traces/torch_compile_triton.json.gz"),
        )
    ),
    Golden("by/h100_bert_small.xz", tuple(
        f"report by {by} {_H100} --format {form}" for by in _BYS for form in ("json", "csv")
    )),
    Golden("by/shape.txt", (
        "report by shape corpus/traces/h100_qwen1.5_0.5b.json.gz",
        "report by shape corpus/traces/b200_vllm_eager.json.gz --peak memory=7.7 --peak bf16=2000",
        "report by shape corpus/traces/v100_resnet_ddp.json.gz",
    )),
    Golden("by/shape.xz", (
        "report by shape corpus/pairs/mi300_vit_base.json.gz --format json",
        "report by shape corpus/traces/torch_compile_triton.json.gz --format csv",
        "report by shape corpus/traces/torch_compile_triton.json.gz --format html",
    )),
    Golden("by/path.txt", (
        "report by path corpus/traces/h100_qwen1.5_0.5b.json.gz",
        f"report by path {_EAGER} --what-if elementwise=0.2x,launches=graph",
        "report by path corpus/engines/vllm_json_xgrammar.json.gz --what-if mask_fill=0.1x",
    )),
    Golden("by/memory.txt", (
        "report by memory corpus/traces/h100_qwen1.5_0.5b.json.gz",
        "COLUMNS=80 report by memory corpus/graphs/mi300x_sglang_qwen3_8b_capture_bs32.json.gz",
        f"report by memory {_QWEN}",
    )),
    Golden("by/memory.xz", (
        "report by memory corpus/pairs/mi300_qwen1.5_0.5b.json.gz --format json",
        "report by memory corpus/pairs/h100_vit_base.json.gz --format csv",
    )),
    Golden("by/path.xz", (
        "report by path corpus/traces/v100_resnet_ddp.json.gz --what-if host=0.5x --format json",
        f"report by path {_QWEN} --format csv",
        f"report by path {_GRAPH} --format html",
    )),
    Golden("by/others.xz", (
        "report by module corpus/pairs/h100_bert_small.json.gz --format speedscope",
        "report by source corpus/pairs/h100_bert_small.json.gz --format speedscope",
        "report by module corpus/pairs/h100_bert_small.json.gz --format markdown",
        "report by module corpus/pairs/h100_bert_small.json.gz --format html",
        "report by module corpus/pairs/mi300_qwen1.5_0.5b.json.gz --format json",
        "report by kernel corpus/traces/mi300x_vllm_decode_graph.json.gz --format json",
        "report by module corpus/engines/vllm_json_llama_nostack.json.gz --format json",
    )),
    Golden("graphs/opened.txt", (f"report {_REPLAY} --all",)),
    Golden("graphs/names.xz", _several(f"report {_GRAPH} --names-from {_EAGER}", "json")),
    Golden("graphs/opened.xz", _several(f"report by operator {_REPLAY}", "json")),
    Golden("compare/captured.txt", (f"compare {_QWEN} {_GENERIC}", f"COLUMNS=80 compare {_QWEN} {_GENERIC} --all")),
    Golden("compare/captured.xz", _several(f"compare {_QWEN} {_GENERIC}", "json", "csv", "markdown", "html")),
    Golden("compare/four.txt", (f"compare {_LLAMA} {_LLAMA_GENERIC} {_QWEN} {_GENERIC}",)),
    Golden("compare/four.xz", _several(f"compare {_LLAMA} {_LLAMA_GENERIC} {_QWEN} {_GENERIC}", "json")),
    Golden("compare/forced.txt", (f"compare {_GRAMMAR} traces/cpu-qwen-jump.json.gz",)),
    Golden("compare/foreign.txt", (f"compare {_BERT}", f"compare {_BERT} --tokens 10 --tokens 20 --molecules 2 --all")),
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
        f"compare {_BERT} --by kernel --format json",
        f"compare {_BERT} --by kernel --format csv",
        f"compare {_BERT} --by kernel --format html",
    )),
    Golden("ranks.txt", ("ranks corpus/ranks", "report corpus/ranks")),
    Golden("ranks.xz", _several("ranks corpus/ranks", "json", "csv", "html")),
    Golden("query.txt", (
        "query list", "query list memory_copies",
        *_queries(_QWEN, "steps", "phases", "drift"),
        "query 'SELECT name, COUNT(*) AS n, SUM(dur) AS ns FROM slice GROUP BY name ORDER BY n DESC, name LIMIT 9' "
        f"{_QWEN} {_GENERIC}",
        "query 'SELECT 1 AS one; SELECT 2 AS two' given/tiny.json",
        "query 'SELECT $a AS a, $b AS b' given/tiny.json -p a=1e6 -p b=text --format json",
    )),
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
        "bench show given/kernels.jsonl",
        "sweep recommend given/bench.jsonl", *_several("sweep recommend given/bench.jsonl", "json", "csv"),
    )),
    Golden(
        "capture.txt",
        (
            "capture --model qwen --lp -n 2 --batch-size 2 --max-new-tokens 24 --window 5:8 --repeats 2 --disagreement "
            "--device cpu --dtype float32 --threads 1 --template-threads 1 -o out.json.gz"
            " && report out.json.gz --format json && report out.json.gz",
        ),
        varies=True,
    ),
    Golden("presets.txt", ("presets", *_several("presets", "json", "csv"))),
    Golden("mistakes.txt", MISTAKES),
    Golden("errors.txt", (
        "", "nothing", "reprot x", "--nope",
        "report", "report absent.json", "report given/empty", "report --nope x", "report given/tiny.json --format yaml",
        "report given/text.json", "report given/blank.json", "report given/object.json", "report given/number.json",
        "report given/cut.json", "report given/cut.json.gz", "report given/new.json",
        "report by kernel given/cut.json",
        "report given/tiny.json -o given/old.txt", "report given/tiny.json -o given/tiny.json --force",
        "report given/tiny.json -o no/such/a.txt", "report given/tiny.json -o given",
        "report given/tiny.json given/tiny-2.json --format csv", "report given/tiny.json given/tiny.json -o out",
        "report given/tiny.json --tokens 0", "report given/tiny.json --tokens 1 --tokens 2",
        f"report {_QWEN} --tokens 5",
        "report given/tiny.json --fail-if 'nothing>1'", "report given/tiny.json --fail-if 'wall_ns'",
        "report given/tiny.json --fail-if 'kernels>+5%'",
        "report by size given/tiny.json", "report given/tiny.json --by kernel",
        "report given/tiny.json --format speedscope",
        "report by kernel given/tiny.json --fail-if 'kernels>1'", "report rows given/tiny.json --all",
        "report given/tiny.json given/tiny-2.json --graph-capture given/tiny.json",
        "report given/tiny.json --graph-capture given/tiny-2.json",
        "report given/tiny.json --graph-capture given/tiny-2.json --names-from given/tiny-2.json",
        "report given/tiny.json given/tiny-2.json --names-from given/tiny.json",
        f"report {_GRAPH} --names-from corpus/traces/mi300x_vllm_decode_graph.json.gz",
        f"report {_GRAPH} --names-from {_QWEN}",
        "report given/tiny.json --trace-processor given/text.json", "report given/tiny.json --submit nowhere -o x.txt",
        "compare given/tiny.json", "compare given", "compare - -", "compare given/tiny.json absent.json",
        "compare given/tiny.json given/text.json", "compare given/tiny.json given/tiny-2.json --of step",
        "compare given/tiny.json given/tiny-2.json --by kernel --of step",
        "compare given/tiny.json given/tiny-2.json given/tiny.json --by kernel",
        "compare given/tiny.json given/none.json --by kernel",
        "compare given/tiny.json given/tiny-2.json --predictions absent.toml",
        "compare given/tiny.json given/tiny-2.json --fail-if 'kernels>+x%'",
        "ranks given/empty", "ranks given/tiny.json", "ranks given/tiny.json given/tiny-2.json", "ranks absent",
        "query", "query launches", "query lanches given/tiny.json", "query 'SELEC 1' given/tiny.json",
        "query 'SELECT a FROM slice' given/tiny.json", "query 'SELECT $a' given/tiny.json",
        "query launches given/tiny.json -p x", "query launches given/tiny.json -p below_ns=1",
        "query absent.sql given/tiny.json", "query launches given/tiny.json --format parquet",
        "query 'SELECT 1; SELECT 2' given/tiny.json --format csv",
        "query list nothing", "query list --sql", "report plot",
        "report plot nothing given/tiny.json -o x.svg",
        "report plot classes given/tiny.json -o x.txt", "report plot waterfall given/tiny.json -o x.svg",
        "trim given/tiny.json", "trim given/tiny.json -o out.txt", "trim given/tiny.json --steps 5 -o out.json",
        "trim given/tiny.json --steps 1:2 -o out.json", "trim given/tiny.json --from 3x -o out.json",
        "trim given/tiny.json -o out.json", "export given/tiny.json", "export given/text.json -o out.json",
        "open given/tiny.json given/tiny-2.json absent.json",
        "drift --tokenizer nothing", "drift --conformers absent.sdf", "drift --placeholder x", "drift -n 0",
        "drift given/tiny.json", "sweep recommend given", "sweep recommend given/tiny.json",
        "sweep recommend absent.jsonl", "sweep recommend given/text.json",
        "bench show absent.jsonl", "bench show given/text.json",
        "bench nothing", "bench show given/bench.jsonl --plot nothing -o x.svg",
        "presets --config absent.toml", "sweep absent.toml", "jobs nothing",
        "jobs collect nothing", "jobs logs nothing",
        "capture", "capture --model qwen -o out.txt", "capture --model qwen -o a.json -n 0",
        "capture --model qwen -o a.json --window 5", "capture --model qwen -o a.json --placeholder 0.0,0.0,0.0",
        "capture --model qwen -o a.json --no-lp --processor generic", "capture --model qwen -o a.json --min-p 2",
        "capture --model qwen -o a.json --smiles absent.smi", "capture --model qwen -o a.json --processor nope",
        "capture --model no-such-model -o a.json", "demo -n 0",
    )),
]  # fmt: skip
