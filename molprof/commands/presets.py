"""`molprof presets`: what comes with molprof."""

from __future__ import annotations

import click


@click.command("presets")
def command() -> None:
    """The models, logits processors and molecules that come with molprof."""
    from molprof.profiler.presets import describe

    click.echo(describe())
