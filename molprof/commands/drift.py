"""`molprof drift`: tokens that coordinates need and placeholders give, without a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from molprof.commands.command import Command
from molprof.commands.options import ResultOptions, note, number_option, path_option, refuse, result_options
from molprof.commands.run_options import format_options, whole_options
from molprof.commands.submission import config_option
from molprof.common.document import Document
from molprof.common.engine_settings import TABLE
from molprof.common.errors import UsageError
from molprof.common.settings import CaptureSettings
from molprof.common.text_format import TextFormat

_DECIMALS = 4


@click.command("drift", cls=Command, context_settings={"allow_extra_args": True})
@click.option(
    "--tokenizer", "tokenizers", multiple=True, default=("qwen", "llama"), metavar="NAME",
    help="Preset, folder with a tokenizer.json, hub id, or model of molprof.toml. Repeatable."
    "  [default: qwen and llama]",
)  # fmt: skip
@path_option(
    "--conformers", "path",
    text="SDF or XYZ file, or a text per line: [C]<1.0,2.0,3.0>...  [default: conformers of the built-in molecules]",
)  # fmt: skip
@number_option("-n", "count", help="Number of conformers.  [default: all]")
@click.option(
    "--placeholder", "placeholders", multiple=True, metavar="TEXT",
    help="Measure this placeholder too, such as 0.000,0.000,0.000. Repeatable.",
)  # fmt: skip
@number_option("--decimals", most=12, default=_DECIMALS, help="Decimals of the coordinates.")
@whole_options
@format_options
@config_option
@result_options()
@click.pass_context
def command(
    context: click.Context,
    /,
    tokenizers: tuple[str, ...],
    path: Path | None,
    count: int | None,
    placeholders: tuple[str, ...],
    decimals: int,
    prompt_format: str | None,
    answer_format: str | None,
    config: Path | None,
    result: ResultOptions,
    **whole: Any,
) -> None:
    """Compare the tokens that real coordinates need with the FREE positions that placeholders give them.

    With --schema, --regex or --choices it shows the freedom that the constraint leaves: endless loops of white space,
    digits or text, and the number of tokens of its forced text.

    Drift is the difference: FREE positions of a placeholder minus tokens of a coordinate block. Above 0, junk fills
    the positions left over. Below 0, the block is cut. Requires no model.

    \b
    Examples:
      molprof drift
      molprof drift --tokenizer qwen --tokenizer ./my-model --conformers molecules.sdf
      molprof drift --tokenizer llama --placeholder 0.00,0.00,0.00 --format json
      molprof drift --tokenizer qwen --schema person.json
      molprof drift --tokenizer ./my-model --answer-format '<mol>{atom}<{x} {y} {z}>...</mol>'
    """
    if context.args:
        raise UsageError(
            f"drift reads tokenizers and conformers, and takes no {context.args[0]}",
            hint="the drift of a run: molprof report TRACE --all; a file of conformers: --conformers FILE",
        )
    result.check(filter(None, [path]))
    if any(value is not None for value in whole.values()):
        excluded: dict[str, object] = {"conformers": path, "placeholder": placeholders, "n": count}
        excluded |= {"decimals": decimals != _DECIMALS, "prompt_format": prompt_format, "answer_format": answer_format}
        refuse("drift of a constraint", "a constraint has no coordinates", **excluded)
        result.deliver(_room(whole, tokenizers, config))
        return
    from molprof.profiler.drift import PLACEHOLDERS, check_placeholders, drift_document, survey
    from molprof.profiler.models.tokenizers import load_backend
    from molprof.profiler.molecules.conformers import built_in_conformers, holds_texts, read_conformers
    from molprof.profiler.project import find_project

    project = find_project(config)
    names = tuple(dict.fromkeys(tokenizers))
    forms = {name: project.model(name).form for name in names}
    forms = {
        name: TextFormat(prompt_format or form.prompt, answer_format or form.answer) for name, form in forms.items()
    }
    wanted = (*PLACEHOLDERS, *placeholders)
    check_placeholders(wanted)
    if path is not None and holds_texts(path) and len(set(forms.values())) > 1:
        raise UsageError(
            f"the models {', '.join(names)} write other texts: {path} cannot be of all",
            hint="one --tokenizer at a time",
        )
    conformers = built_in_conformers(count) if path is None else read_conformers(path, count, forms[names[0]])
    loaded = [(name, load_backend(project.tokenizer(name) or name), forms[name]) for name in names]
    note(*(f"line {skipped.line}: {skipped.problem}; skipped" for skipped in conformers.skipped))
    result.deliver(drift_document(survey(loaded, conformers, wanted, decimals)))


def _room(options: dict[str, Any], names: tuple[str, ...], config: Path | None) -> Document:
    from molprof.profiler.constraints import whole_of
    from molprof.profiler.constraints.automaton import NoText, TooLarge
    from molprof.profiler.constraints.json_schema import compiled
    from molprof.profiler.constraints.regular import NotRegular
    from molprof.profiler.constraints.room import room_document, room_of
    from molprof.profiler.models.tokenizers import load_backend
    from molprof.profiler.project import find_project

    # A capture checks the same options.
    whole = whole_of(CaptureSettings("llama", prompts="-", max_new_tokens=1, processor=TABLE, **options))
    assert whole is not None
    try:
        automaton = compiled(whole)
    except (NotRegular, TooLarge, NoText) as problem:
        hint = "write it otherwise, or see what another engine does in a run: molprof capture --disagreement"
        raise UsageError(f"no automaton is made of the {whole.kind}: {problem}", hint) from None
    project = find_project(config)
    loaded = [(name, load_backend(project.tokenizer(name) or name)) for name in dict.fromkeys(names)]
    return room_document(room_of(whole.kind, whole.text, automaton, loaded))
