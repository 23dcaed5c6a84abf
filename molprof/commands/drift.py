"""`molprof drift`: what placeholders give and what coordinates need, without a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from molprof.commands.options import check_result, deliver, note, result_options
from molprof.commands.submission import config_option
from molprof.common.errors import MissingExtraError


@click.command("drift")
@click.option(
    "--tokenizer",
    "tokenizers",
    multiple=True,
    default=("qwen", "llama"),
    show_default="qwen and llama",
    metavar="NAME",
    help="Preset, folder with a tokenizer.json, hub id, or model of molprof.toml. May be given several times.",
)
@click.option(
    "--conformers",
    "path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="SDF, XYZ, or a text per line: [C]<1.0,2.0,3.0>...  [default: ETKDG conformers of the built-in molecules]",
)
@click.option("-n", "count", type=click.IntRange(1), metavar="N", help="Conformers to take.  [default: all]")
@click.option(
    "--placeholder",
    "placeholders",
    multiple=True,
    metavar="TEXT",
    help="Measure this one too, such as 0.000,0.000,0.000. May be given several times.",
)
@click.option("--decimals", type=click.IntRange(1, 12), default=4, show_default=True, help="Of the coordinates.")
@config_option
@result_options("table", "json", "csv", "markdown")
def command(
    tokenizers: tuple[str, ...],
    path: Path | None,
    count: int | None,
    placeholders: tuple[str, ...],
    decimals: int,
    config: Path | None,
    style: str,
    output: Path | None,
    force: bool,
) -> None:
    """Counts the tokens that real coordinates need and that placeholders give them.

    Drift is the difference: FREE positions of a placeholder minus tokens of a coordinate. Above 0 the positions that
    are left over fill with junk, below 0 the coordinate is cut. No model is needed.

    \b
    Examples:
      molprof drift
      molprof drift --tokenizer qwen --tokenizer ./my-model --conformers molecules.sdf
      molprof drift --tokenizer llama --placeholder 0.00,0.00,0.00 --format json
    """
    check_result(output, force)
    try:
        import rdkit  # noqa: F401
    except ImportError as problem:
        raise MissingExtraError("rdkit", "presets", "reading coordinates") from problem
    from molprof.analysis.render.data import report_to_csv, to_json
    from molprof.analysis.render.markdown import to_markdown
    from molprof.analysis.render.table import to_table
    from molprof.commands.drift_document import drift_document
    from molprof.profiler.drift.survey import PLACEHOLDERS, check_placeholders, survey
    from molprof.profiler.models.tokenizers import load_backend
    from molprof.profiler.molecules.conformers import built_in_conformers, read_conformers
    from molprof.profiler.project import find_project

    project = find_project(config)
    wanted = (*PLACEHOLDERS, *placeholders)
    check_placeholders(wanted)
    found = built_in_conformers(count) if path is None else read_conformers(path, count)
    loaded = [(name, load_backend(project.tokenizer(name) or name)) for name in dict.fromkeys(tokenizers)]
    for skipped in found.skipped:
        note(f"line {skipped.line}: {skipped.problem}; skipped")
    result = survey(loaded, found, wanted, decimals)
    figures: Any = result  # both renderers take whatever has a to_json()
    if style in ("json", "csv"):
        deliver(to_json(figures) if style == "json" else report_to_csv(figures), output)
        return
    document = drift_document(result)
    deliver(to_table(document) if style == "table" else to_markdown(document), output)
