"""`molprof presets`: what comes with molprof, and what molprof.toml names."""

from __future__ import annotations

from pathlib import Path

import click

from molprof.commands.options import deliver
from molprof.commands.submission import config_option


@click.command("presets")
@config_option
def command(config: Path | None) -> None:
    """The models, logits processors and molecules that come with molprof, and what molprof.toml names."""
    from molprof.profiler.presets import describe
    from molprof.profiler.project import find_project

    deliver(describe(find_project(config)), None)
