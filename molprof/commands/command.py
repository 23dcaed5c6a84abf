"""Classes of commands: subcommands with own arguments, and help on one screen, with examples first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import cleandoc
from textwrap import dedent, shorten
from typing import Any, TypeVar

import click

_F = TypeVar("_F", bound=Callable[..., Any])
_EXAMPLES = "\n\n\b\nExamples:\n"
_ALL = "molprof.help-all"
# Lines of a screen, examples that short help shows, the longest name of an option that leaves room for a text, and
# options that need no headings.
_LINES, _SHOWN, _LONGEST, _FEW = 40, 3, 30, 12
_CUT = "..."
_UNNAMED = "Options"
# Name of a parameter -> heading in help, in order; others are under "Options".
_SUBJECTS = {
    name: subject
    for subject, names in {
        "Model": "model size weights tokenizer trust_remote_code",
        "Constraint": "lp processor processor_args schema regex choices grammar_file placeholder forced_runs"
        " free_drafts template_threads template_cache",
        "Prompts": "count fill batch_size smiles prompts requests prompt_format answer_format generations strict sort"
        " check",
        "Sampling": "sampling temperature top_p top_k min_p max_new_tokens generate_args",
        "What is measured": "attention_shapes backends phases masks engines tokenizers schemas batches oracle",
        "Speed": "attention kv_cache max_cache_length compile dtype tf32 cudnn_benchmark padding_multiple"
        " drop_finished engine assistant speculative arrivals device threads",
        "Passes": "repeats warmup timed_only processes seed limit limit_s memory_limit bisect share",
        "Recording": "window full modules stacks functions shapes memory disagreement",
        "Analysis": "whole peaks changes what_if rows gpu graph_capture names_from thresholds tokens molecules",
        "Reading": "partial cached native_path",
        "Output": "style output folder force resume retry dry_run",
        "Cluster": "config cluster overrides detach where tasks read_limit_s",
    }.items()
    for name in names.split()
}


class _Help(click.Command):
    """Help with examples first."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        # As the group of all commands has it: click keeps the option as it was when it was asked for first.
        settings["context_settings"] = {
            "help_option_names": ["-h", "--help"],
            **(settings.get("context_settings") or {}),
        }
        super().__init__(*arguments, **settings)

    def _texts(self) -> tuple[str, str]:
        """Return the text of the help, and its examples, a line each."""
        text, _, examples = cleandoc(self.help or "").partition(_EXAMPLES)
        examples, more, rest = examples.partition("\n\b\n")
        return f"{text}\n\n\b\n{rest}" if more else text, dedent(examples.rstrip())

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _write_text(formatter, *self._texts())


def _first_sentence(text: str, room: int) -> str:
    """Return the first sentence of a text without its period, shortened if it is long."""
    return shorten(text.partition(". ")[0].removesuffix("."), max(room, len(_CUT)), placeholder=_CUT)


def _write_text(formatter: click.HelpFormatter, text: str, examples: str) -> None:
    for part in (f"\b\n{examples}" if examples else "", text):
        if part:
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(part)


class CommandGroup(_Help, click.Group):
    """A group that lists its commands in the order of their declaration.

    Args:
        moved: commands by their former names; the error of one says which.
    """

    def __init__(self, *arguments: Any, moved: Mapping[str, str] = {}, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._moved = moved

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of a name; an unknown one is an error that names the nearest."""
        if args[0] in self._moved:
            raise click.UsageError(f"{ctx.command_path} {args[0]} is now: molprof {self._moved[args[0]]}", ctx)
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order of their declaration."""
        return list(self.commands)


class Command(_Help):
    """A command that may have subcommands: if its first argument names none, it belongs to the command itself.

    Where its help is longer than a screen, --help shows a line about each option as far as there is room, those of its
    examples before others, and the names of the rest; --help-all shows all.

    Attributes:
        commands: its subcommands by name; `add` adds one.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.commands: dict[str, click.Command] = {}

    def add(self, command: click.Command) -> None:
        """Add a subcommand."""
        self.commands[command.name or ""] = command

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Return the context of the subcommand that the first argument names, else of the command."""
        if args and (subcommand := self.commands.get(args[0])) is not None:
            return subcommand.make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters, with `--help-all`."""
        option = click.Option(
            ["--help-all"], is_flag=True, is_eager=True, hidden=True, expose_value=False, callback=_show_all
        )
        return [*super().get_params(ctx), option]

    def get_help(self, ctx: click.Context) -> str:
        """Return the help, without rare options unless all are requested."""
        page = super().get_help(ctx)
        if ctx.meta.get(_ALL):
            return page
        examples = self._texts()[1].split("\n")
        # Those of the examples that are shown come first, then those of the others.
        ranked = (*self._used(ctx, examples[:_SHOWN]), *self._used(ctx, examples), *self._options(ctx))
        common = list(dict.fromkeys(ranked))
        while page.count("\n") >= _LINES:
            page = self._short_help(ctx, [item for item in self._options(ctx) if item in common])
            if not common:
                break
            common.pop()
        return page

    def _used(self, ctx: click.Context, examples: Sequence[str]) -> list[click.Option]:
        words = {word for line in examples for word in line.replace("=", " ").split()}
        return [item for item in self._options(ctx) if words & {*item.opts, *item.secondary_opts}]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write subcommands, then options by subject."""
        self._format_commands(formatter)
        for subject, items in self._by_subject(ctx, ()).items():
            with formatter.section(subject):
                formatter.write_dl([record for item in items if (record := item.get_help_record(ctx))])

    def _short_help(self, ctx: click.Context, common: Sequence[click.Option]) -> str:
        formatter = ctx.make_formatter()
        self.format_usage(ctx, formatter)
        text, examples = self._texts()
        _write_text(formatter, text.partition("\n\n")[0], "\n".join(examples.split("\n")[:_SHOWN]))
        self._format_commands(formatter)
        names = {item: _name(item, ctx) for item in common}
        room = formatter.width - max(map(len, names.values()), default=0) - 4
        if names:
            with formatter.section(_UNNAMED):
                formatter.write_dl([(name, _first_sentence(item.help or "", room)) for item, name in names.items()])
        others = [
            (subject, ", ".join(item.opts[0] for item in items))
            for subject, items in self._by_subject(ctx, common).items()
        ]
        with formatter.section("Other options"):
            formatter.write_dl([*others, ("--help-all", "Show all options, texts and examples, and exit.")])
        return formatter.getvalue().rstrip("\n")

    def _format_commands(self, formatter: click.HelpFormatter) -> None:
        if self.commands:
            with formatter.section("Commands"):
                formatter.write_dl([(name, item.get_short_help_str(80)) for name, item in self.commands.items()])

    def _options(self, ctx: click.Context) -> list[click.Option]:
        """Return the options that help shows."""
        return [item for item in self.get_params(ctx) if isinstance(item, click.Option) and not item.hidden]

    def _by_subject(self, ctx: click.Context, without: Sequence[click.Option]) -> dict[str, list[click.Option]]:
        """Return options by their heading, in the order of the headings."""
        options = self._options(ctx)
        subjects = _SUBJECTS if len(options) > _FEW else {}
        by_subject: dict[str, list[click.Option]] = {subject: [] for subject in (*subjects.values(), _UNNAMED)}
        for item in options:
            if item not in without:
                by_subject[subjects.get(item.name or "", _UNNAMED)].append(item)
        return {subject: items for subject, items in by_subject.items() if items}


def _name(option: click.Option, context: click.Context) -> str:
    """Return the option as help names it, without its values where these are long."""
    name = (option.get_help_record(context) or ("",))[0]
    return name if len(name) <= _LONGEST else ", ".join(option.opts)


def _show_all(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        context.meta[_ALL] = True
        click.echo(context.get_help(), color=context.color)
        context.exit()


def moved(option: str, now: str, **settings: Any) -> Callable[[_F], _F]:
    """Add a hidden option that has become a command; its error names that, with the option's value for {}."""

    def refuse(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        if value:
            text = value if isinstance(value, str) else next(iter(value), "") if isinstance(value, tuple) else ""
            raise click.UsageError(f"{option} is a command now: {now.format(text)}", context)

    return click.option(option, hidden=True, expose_value=False, is_eager=True, callback=refuse, **settings)
