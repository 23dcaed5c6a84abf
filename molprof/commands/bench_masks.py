"""`molprof bench masks`: its options, and the cases that they select."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from molprof.commands.options import ResultOptions, note, refuse
from molprof.commands.run_options import Seconds
from molprof.common.bench_records import digest
from molprof.common.engine_settings import CONSTRAINTS
from molprof.common.files import read_text
from molprof.profiler.bench.cases import ENGINES, Case, MasksCase, case_id
from molprof.profiler.bench.schemas import SchemaFolder, find_schemas
from molprof.profiler.bench.tools import find_tools

NAME = "masks"
TEXT = """Measure the masks of constrained decoding without a model, along instances of JSON schemas.

Accepting tokens, filling masks and applying them are measured as in a capture, of one row and of batches, and engines
are in the order of the total.

PATH is a JSON schema, of which texts are made, or a folder that holds a JSON file per schema: {"schema": {...},
"tests": [{"valid": true, "data": ...}]}, the layout of MaskBench. A file without tests in a folder is a schema alone,
as in JSONSchemaBench. Without PATH, molprof's own set is measured.

\b
Examples:
  molprof bench masks -o masks.jsonl
  molprof bench masks person.json --tokenizer qwen -o person.jsonl
  molprof bench masks --regex '[0-9]{3}-[a-z]+' --tokenizer qwen -o regex.jsonl
  molprof bench masks --tools --tokenizer qwen -o tools.jsonl
  molprof bench masks maskbench/data --engine xgrammar,llguidance --schemas 1 --share 1/100 -o masks.jsonl --resume
  molprof bench masks --oracle -o oracle.jsonl
"""
OPTIONS = (
    click.argument("folder", metavar="[PATH]", required=False, type=click.Path(exists=True, resolve_path=True)),
    click.option("--schema", metavar="FILE", type=click.Path(exists=True, dir_okay=False, resolve_path=True),
                 help="Measure this JSON schema: the same as PATH."),
    click.option("--regex", metavar="PATTERN", help="Measure this regular expression."),
    click.option("--choices", metavar="A,B", help="Measure the choice of these texts."),
    click.option("--grammar-file", metavar="FILE", type=click.Path(exists=True, dir_okay=False, resolve_path=True),
                 help="Measure this grammar, GBNF for xgrammar or Lark for llguidance."),
    click.option("--tools", is_flag=False, flag_value="", metavar="[FILE]",
                 help="Measure sets of 1, 8 and 64 tools, as structural tags and as required calls; or the set of"
                 " tools in FILE, as in a request of the OpenAI API."),
    click.option("--schemas", type=click.IntRange(1), default=32, show_default=True, metavar="N",
                 help="Schemas of a case. A schema that ends its process does not end the others."),
    click.option("--seconds", type=Seconds(), metavar="N",
                 help="Measure each engine for N seconds per schema, and say what is left out.  [default: 5 of one"
                 " constraint, else no limit]"),
    click.option("--oracle", is_flag=True,
                 help="Compare the masks of each two engines, and say who is right, in place of timing."),
)  # fmt: skip
# Of options that all benchmarks have, other words.
HELP = {
    "threads": "Fill each --batch with one and N threads too; xgrammar, llguidance can.  [default: as the package]",
    "repeats": "Processes per case, interleaved with those of the others.  [default: 3, of one constraint 1]",
}
# Of one constraint: seconds of measuring for each engine, beside starting and compiling.
_SECONDS = 5.0
_TOKENIZER = "llama"
# What Python says of patterns that other dialects of regular expressions read.
_OTHER_DIALECT = ("bad escape", "unknown extension", "bad inline flags", "bad character in group name")
ENGINE_NAMES = tuple(ENGINES)


def mask_cases(options: dict[str, Any]) -> Callable[[bool], Sequence[Case]]:
    """Return the cases by options; the same with a GPU."""
    threads, batches = options["threads"], options["batches"]
    if min(batches) < 1:
        raise click.BadParameter("a batch has a row or more", param_hint="'--batch'")
    if options["oracle"] and click.get_current_context().get_parameter_source("batches") is ParameterSource.DEFAULT:
        batches = ()
    refuse("molprof bench masks --oracle", "it times nothing", batch=options["oracle"] and batches)
    refuse("molprof bench masks --oracle", "it times nothing", threads=options["oracle"] and threads)
    size, (folder, constraint) = options["schemas"], _one_constraint(options)
    is_one = constraint is not None or (folder is not None and Path(folder).is_file())
    seconds = options["seconds"] or (_SECONDS if is_one and not options["oracle"] else None)
    if (tools := options["tools"]) is not None:
        if options["oracle"] or folder is not None or constraint is not None:
            raise click.UsageError("--tools excludes --oracle, PATH and other constraints")
        tools = tools and str(Path(tools).resolve())
    if options["tokenizers"] is None:
        note(f"tokenizer: {_TOKENIZER}; --tokenizer takes that of your model, with which engines may rank otherwise")
    if options["oracle"] and constraint is not None:
        raise click.UsageError("--oracle compares masks of JSON schemas alone")
    if tools is not None:
        schemas = find_tools(tools)
    elif constraint is None:
        schemas = find_schemas(None if folder is None else Path(folder))
    else:
        schemas = SchemaFolder((constraint[0],), (digest({"constraint": constraint}),))
    engines: Sequence[tuple[str, ...]] = [(name,) for name in options["engines"]]
    if options["oracle"]:
        if len(engines) < 2:
            raise click.UsageError("--oracle requires two engines or more")
        engines = [*itertools.combinations(options["engines"], 2)]
    cases = [
        MasksCase(
            names[0],
            tokenizer,
            folder,
            first,
            count,
            schemas.digest(first, count),
            other=(*names, None)[1],
            batches=batches,
            threads=threads,
            device=options["device"],
            constraint=constraint,
            seconds=seconds,
            tools=tools,
        )
        for tokenizer in options["tokenizers"] or (_TOKENIZER,)
        for first in range(0, len(schemas.names), size)
        for names in engines
        for count in [min(size, len(schemas.names) - first)]
    ]
    return lambda gpu: cases


def show_ranking(output: Path, cases: Sequence[Case]) -> None:
    """Print the recommended engine, if the cases are of one constraint and have figures."""
    from molprof.analysis.bench.summary import summed
    from molprof.analysis.documents.masks import masks_ranking
    from molprof.common.bench_records import read_results

    if not all(isinstance(case, MasksCase) and case.is_one and case.other is None for case in cases):
        return
    ids = set(map(case_id, cases))
    measured = [item for item in summed(read_results(output)) if item.case in ids and item.masks]
    measured = [item for item in measured if item.environment == measured[-1].environment]
    if len(measured) > 1:
        ResultOptions().deliver(masks_ranking(measured))


def _one_constraint(options: dict[str, Any]) -> tuple[str | None, tuple[str, str] | None]:
    """Return the folder or file of schemas, or the single constraint (kind and text) in its place."""
    names = [name for name in ("folder", *CONSTRAINTS) if options[name] is not None]
    if len(names) > 1:
        one, other = ("PATH" if name == "folder" else f"--{name.replace('_', '-')}" for name in names[:2])
        raise click.UsageError(f"{one} and {other} exclude each other; give one of them")
    if not names or names[0] in ("folder", "schema"):
        return options["folder"] or options["schema"], None
    value = options[names[0]]
    if names[0] == "grammar_file":
        return None, ("grammar", read_text(Path(value)))
    if names[0] == "regex":
        try:
            re.compile(value)
        except re.error as problem:
            if problem.msg.startswith(_OTHER_DIALECT):
                return None, (names[0], value)
            raise click.BadParameter(f"{value!r} is no regular expression: {problem}", param_hint="'--regex'") from None
    return None, (names[0], value)
