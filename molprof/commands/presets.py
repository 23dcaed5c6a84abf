"""`molprof presets`: what comes with molprof, and what molprof.toml names."""

from __future__ import annotations

from pathlib import Path

import click

from molprof.commands.options import check_result, deliver, result_options
from molprof.commands.submission import config_option


@click.command("presets")
@config_option
@result_options()
def command(config: Path | None, style: str, output: Path | None, force: bool) -> None:
    """List the models, logits processors and molecules that come with molprof, and those of molprof.toml."""
    check_result(output, force)
    from molprof.profiler.presets import presets_document
    from molprof.profiler.project import find_project

    deliver(presets_document(find_project(config)), style, output)
