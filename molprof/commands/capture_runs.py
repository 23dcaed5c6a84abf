"""Which runs the options of `molprof capture` ask for: the settings of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from molprof.commands.run_options import check_arguments
from molprof.common.errors import UsageError
from molprof.common.files import next_free
from molprof.common.settings import LP_PROCESSOR, CaptureSettings
from molprof.profiler.capture.tracefile import default_name
from molprof.profiler.models.architecture import check_preset
from molprof.profiler.project import Project

# Words for no processor, and for that of --lp, in place of a processor's name.
NONE, LP = "none", "lp"


def capture_settings(project: Project, lp: bool | None, **options: Any) -> CaptureSettings:
    """The options of the command as settings; a model's short name in the project stands for its table."""
    chosen = options["processor"] or (LP if lp else NONE)
    if lp is False and chosen != NONE:
        raise click.UsageError(f"--no-lp and --processor {chosen} contradict each other; give one of them")
    alias = project.model(options["model"])
    options["processor"] = {NONE: None, LP: alias.processor or LP_PROCESSOR}.get(chosen, chosen)
    options |= {"model": alias.path, "tokenizer": project.tokenizer(options["tokenizer"], alias)}
    options["prompt_format"] = options.get("prompt_format") or alias.form.prompt
    options["answer_format"] = options.get("answer_format") or alias.form.answer
    if ":" not in (options["processor"] or ""):
        options["processor_args"] = ()  # of another run of this capture or sweep
    settings = CaptureSettings(**options)
    check_preset(settings)
    return settings


def run_settings(project: Project, model: str, processor: str | None, **options: Any) -> dict[str, CaptureSettings]:
    """The settings of each run by the name of its trace: every model with every processor, in that order."""
    models = [model] if Path(model).exists() else _names("--model", model)
    processors = [None] if processor is None else _names("--processor", processor)
    several = len(models) * len(processors) > 1
    found: dict[str, CaptureSettings] = {}
    for one in models:
        for chosen in processors:
            unconstrained = chosen == NONE or not (chosen or options["lp"])
            # Those of the others.
            own = {**options, "disagreement": False, "placeholder": None} if several and unconstrained else options
            settings = capture_settings(project, model=one, processor=chosen, **own)
            path = next_free(Path(default_name(one, settings.processor)), lambda path: path.name in found)
            found[path.name] = settings
    given = options["processor_args"]
    check_arguments(given, any(settings.processor_args for settings in found.values()))
    return found


def _names(option: str, value: str) -> list[str]:
    names = [name.strip() for name in value.split(",")]
    if "" in names:
        raise UsageError(f"{option} {value!r} names nothing between its commas", hint=f"e.g. {option} NAME,NAME")
    return names
