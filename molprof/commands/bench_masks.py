"""`molprof bench masks`: its options, and the cases that they ask for."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from molprof.commands.options import refuse
from molprof.common.settings import AUTO
from molprof.profiler.bench.cases import ENGINES, Case, MasksCase
from molprof.profiler.bench.schemas import find_schemas

NAME = "masks"
TEXT = """Measure the masks of constrained decoding without a model, along instances of JSON schemas.

DIR holds a JSON file per schema: {"schema": {...}, "tests": [{"valid": true, "data": ...}]}, the layout of MaskBench.
A file without tests is a schema alone, as in JSONSchemaBench. Without DIR, molprof's own set is measured.

\b
Examples:
  molprof bench masks -o masks.jsonl
  molprof bench masks maskbench/data --engine xgrammar,llguidance --schemas 1 --share 1/100 -o masks.jsonl --resume
  molprof bench masks --oracle -o oracle.jsonl
"""
OPTIONS = (
    click.argument("folder", metavar="[DIR]", required=False,
                   type=click.Path(exists=True, file_okay=False, resolve_path=True)),
    click.option("--schemas", type=click.IntRange(1), default=32, show_default=True, metavar="N",
                 help="Schemas of a case. A schema that ends its process does not end the others."),
    click.option("--oracle", is_flag=True,
                 help="Compare the masks of each two engines, and say who is right, in place of timing."),
)  # fmt: skip
THREADS = "Fill each --batch with N threads too, beside one. xgrammar and llguidance alone have more.  [default: 1]"
ENGINE_NAMES = tuple(ENGINES)


def mask_cases(given: dict[str, Any]) -> Callable[[bool], Sequence[Case]]:
    """The cases by options; the same with a GPU."""
    threads, batches = given["threads"], given["batches"] or ()
    if batches and min(batches) < 1:
        raise click.BadParameter("a batch has a row or more", param_hint="'--batch'")
    refuse("molprof bench masks", "masks are made on the host", device=given["device"] != AUTO)
    refuse("molprof bench masks", "with --batch N: threads fill its masks", threads=threads and not batches)
    refuse("molprof bench masks --oracle", "it times nothing", batch=given["oracle"] and batches)
    folder, size = given["folder"], given["schemas"]
    found = find_schemas(None if folder is None else Path(folder))
    engines: Sequence[tuple[str, ...]] = [(name,) for name in given["engines"]]
    if given["oracle"]:
        if len(engines) < 2:
            raise click.UsageError("--oracle requires two engines or more")
        engines = [*itertools.combinations(given["engines"], 2)]
    cases = [
        MasksCase(
            names[0],
            tokenizer,
            folder,
            first,
            count,
            found.digest(first, count),
            other=(*names, None)[1],
            batches=batches,
            threads=threads or 1,
        )
        for tokenizer in given["tokenizers"]
        for first in range(0, len(found.names), size)
        for names in engines
        for count in [min(size, len(found.names) - first)]
    ]
    return lambda gpu: cases
