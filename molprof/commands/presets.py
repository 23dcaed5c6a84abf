"""`molprof presets`: models, processors and molecules of molprof and of molprof.toml; `export` writes one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from molprof.commands.command import Command, CommandGroup
from molprof.commands.options import ResultOptions, note, result_options
from molprof.commands.run_options import setting_option
from molprof.commands.submission import config_option
from molprof.common.settings import SETTINGS
from molprof.profiler.models.architecture import ARCHITECTURES


@click.group("presets", cls=CommandGroup, invoke_without_command=True)
@config_option
@result_options()
@click.pass_context
def command(context: click.Context, config: Path | None, result: ResultOptions) -> None:
    """List the models, logits processors and molecules that come with molprof, and those of molprof.toml."""
    if context.invoked_subcommand is not None:
        return
    result.check()
    from molprof.profiler.presets import presets_document
    from molprof.profiler.project import find_project

    result.deliver(presets_document(find_project(config)))


@command.command("export", cls=Command)
@click.argument("model", metavar="PRESET", type=click.Choice(tuple(ARCHITECTURES)))
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@setting_option(SETTINGS["size"])
@setting_option(SETTINGS["weights"])
@setting_option(SETTINGS["dtype"])
def export(folder: Path, **options: Any) -> None:
    """Write a preset as a folder that transformers and vLLM load.

    DIR gets the config, the tokenizer and the weights. PRESET is qwen or llama.

    \b
    Examples:
      molprof presets export qwen my-qwen
      molprof presets export llama my-llama --size 380m --dtype bfloat16
    """
    from molprof.common.settings import CaptureSettings
    from molprof.profiler.models.architecture import check_preset
    from molprof.profiler.models.load import export as write

    settings = CaptureSettings(**options, device="cpu")
    check_preset(settings)
    write(settings, folder)
    note(f"wrote {folder}")
