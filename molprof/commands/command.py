"""The class of the commands: one may have subcommands beside arguments of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

_F = TypeVar("_F", bound=Callable[..., Any])


class Command(click.Command):
    """A command with subcommands: a first argument that is the name of none belongs to the command itself.

    Attributes:
        commands: its subcommands by name; `add` adds one.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.commands: dict[str, click.Command] = {}

    def add(self, command: click.Command) -> None:
        self.commands[command.name or ""] = command

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Return the context of the subcommand that the first argument names, else of the command."""
        if args and (found := self.commands.get(args[0])) is not None:
            return found.make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Subcommands, then options."""
        if self.commands:
            with formatter.section("Commands"):
                formatter.write_dl([(name, item.get_short_help_str(100)) for name, item in self.commands.items()])
        self.format_own_options(ctx, formatter)

    def format_own_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)


def moved(option: str, now: str, **settings: Any) -> Callable[[_F], _F]:
    """A hidden option that is a command now; its error says which, with the option's value for {}."""

    def refuse(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        if value:
            text = value if isinstance(value, str) else next(iter(value), "") if isinstance(value, tuple) else ""
            raise click.UsageError(f"{option} is a command now: {now.format(text)}", context)

    return click.option(option, hidden=True, expose_value=False, is_eager=True, callback=refuse, **settings)


class Group(click.Group):
    """A group that lists its commands in the order of their declaration."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)
