"""`molprof presets`: what comes with molprof, and what molprof.toml names."""

from __future__ import annotations

from pathlib import Path

import click

from molprof.commands.options import Result, result_options
from molprof.commands.submission import config_option


@click.command("presets")
@config_option
@result_options()
def command(config: Path | None, result: Result) -> None:
    """List the models, logits processors and molecules that come with molprof, and those of molprof.toml."""
    result.check()
    from molprof.profiler.presets import presets_document
    from molprof.profiler.project import find_project

    result.deliver(presets_document(find_project(config)))
