"""Options that several commands share, and the writing of results to stdout, or to a whole file."""

from __future__ import annotations

import functools
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

import click

from molprof.analysis.documents import plots
from molprof.analysis.reader import STDIN, Reading, is_stream
from molprof.analysis.reader.remote import is_remote, placed
from molprof.analysis.render import FORMATS, render
from molprof.commands.command import Command
from molprof.common.document import Document
from molprof.common.errors import UsageError
from molprof.common.files import check_output, is_same, replacing, writing_stdout
from molprof.common.text import escaped

_F = TypeVar("_F", bound=Callable[..., Any])

# The reader checks whether it can be read: its error has its own exit code.


class NamedPath(click.Path):
    """A parameter type for paths that refuses an empty text, which would mean the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path; an empty name is an error."""
        if value == "":
            self.fail("an empty name; is a variable of the shell not set?", param, ctx)
        return super().convert(value, param, ctx)


class TracePath(NamedPath):
    """The path of a trace here, or its address: `s3://`, `gs://` or `http(s)://`.

    Of a compressed one the ending .gz or .zst may be left out.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path or address of a trace."""
        if is_remote(value):
            return placed(value)
        path = super().convert(value, param, ctx)
        if path.suffix and not path.exists():
            for whole in (path.with_name(path.name + ending) for ending in (".gz", ".zst")):
                if whole.is_file():
                    note(f"there is no {path}: {whole} is read")
                    return whole
        return path


TRACE = TracePath(path_type=Path, readable=False)
FOLDER = TracePath(path_type=Path, readable=False, file_okay=False)
PLOT_FORMATS = plots.FORMATS


class Read(click.ParamType):  # type: ignore[type-arg]  # generic in click's stubs only since 8.5
    """A parameter type for values that a function reads from text; its ValueError says what is wrong."""

    def __init__(self, read: Callable[[str], Any], name: str = "text") -> None:
        self._read, self.name = read, name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value of the text; a text that cannot be read is an error."""
        try:
            return self._read(value) if isinstance(value, str) else value
        except ValueError as problem:
            self.fail(str(problem), param, ctx)


def _duration(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    if match is None or not float(match[1]):
        raise ValueError(f"{text!r} is no time, such as 30s, 10m, 24h or 7d")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[match[2]]


# A length of time, in s.
DURATION = Read(_duration, "time")


def number_option(*names: str, least: int = 1, most: int | None = None, **settings: Any) -> Callable[[_F], _F]:
    """Return an option that takes a whole number."""
    shown = settings.get("default") is not None
    return click.option(*names, type=click.IntRange(least, most), metavar="N", show_default=shown, **settings)


def path_option(*names: str, text: str, metavar: str = "FILE", **how: Any) -> Callable[[_F], _F]:
    """Return an option that takes a path. how: further arguments of `click.Path`."""
    return click.option(*names, type=NamedPath(path_type=Path, **how), metavar=metavar, help=text)


class PlotCommand(Command):
    """A command whose help lists the kinds of plots that it draws, each with a line about it."""

    def __init__(self, *arguments: Any, kinds: Mapping[str, str], **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._kinds = kinds

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the kinds of plots before the options."""
        with formatter.section("Plots"):
            formatter.write_dl(list(self._kinds.items()))
        super().format_options(ctx, formatter)


def plot_format(output: Path | None) -> str:
    """Return the format that the ending of a path selects."""
    return "" if output is None else output.suffix.removeprefix(".").lower()


engine_options = click.option(
    "--trace-processor", "native_path", metavar="PATH", envvar="MOLPROF_TRACE_PROCESSOR", show_envvar=True,
    help="Native trace_processor_shell to use instead of the embedded one.",
)  # fmt: skip
_force_option = click.option("--force", is_flag=True, help="Replace OUT if it exists.")


def with_options(function: _F, *options: Callable[[_F], _F]) -> _F:
    """Return the function with these options, which help lists in this order."""
    for option in reversed(options):
        function = option(function)
    return function


def declared(*names: Any, **settings: Any) -> Any:
    """Return a field of a dataclass for `grouped`, with its option: the arguments of `click.option`, or an option."""
    option = names[0] if callable(names[0]) else click.option(*names, **settings)
    default = () if settings.get("multiple") else settings.get("default", False if settings.get("is_flag") else None)
    return field(default=default, metadata={"option": option})


def grouped(kind: type[Any], name: str, *options: Callable[[Any], Any]) -> Callable[[_F], _F]:
    """Add options that the command gets as one `kind` named `name`; fields without an option keep their default.

    options: in place of those that the fields are `declared` with.
    """
    added = options or [item.metadata["option"] for item in fields(kind)]

    def add(command: _F) -> _F:
        @functools.wraps(command)
        def with_group(*arguments: Any, **values: Any) -> Any:
            group = kind(**{item.name: values.pop(item.name) for item in fields(kind) if item.name in values})
            return command(*arguments, **{name: group}, **values)

        wrapped: Any = with_options(with_group, *added)
        return wrapped  # type: ignore[no-any-return]

    return add


_partial_option = click.option("--partial", is_flag=True, help="Read the intact part of a damaged trace.")
_cached_option = click.option(
    "--no-cache", "cached", flag_value=False, default=True, help="Do not use or fill the cache."
)
reading_options = grouped(Reading, "reading", _partial_option, _cached_option, engine_options)
uncached_options = grouped(Reading, "reading", _partial_option, engine_options)


SPEEDSCOPE, PARQUET = "speedscope", "parquet"
# Formats that are not text.
_BINARY = (*PLOT_FORMATS, PARQUET)


@dataclass(frozen=True)
class ResultOptions:
    """Destination and format of a command's result: the values of `result_options`."""

    style: str = "table"
    output: Path | None = None  # None: stdout
    force: bool = False

    @property
    def columns(self) -> int | None:
        """Columns of the terminal that shows the result; None for any other destination."""
        return terminal_columns() if self.output is None else None

    def check(self, inputs: Iterable[Path] = ()) -> None:
        """Refuse, before any work, an unusable OUT, one that is an input, or without OUT an unusable stdout."""
        if self.output is None and self.style in _BINARY:
            raise click.UsageError(f"--format {self.style} requires -o OUT")
        if self.output is None:
            with writing_stdout():
                pass
        else:
            check_output(self.output, self.force, inputs)

    def deliver(self, document: Document, whole: bool = True) -> None:
        """Write the document in one of `FORMATS`; without `whole`, only one screen of it."""
        write(render(document, self.style, self.columns, whole), self.output)


def _output_option(**settings: Any) -> Callable[[_F], _F]:
    return click.option("-o", "--output", metavar="OUT", type=NamedPath(path_type=Path), **settings)


def result_options(*more: str) -> Callable[[_F], _F]:
    """Add `--format`, `-o` and `--force` to a command whose result is a document; `more`: further formats."""
    endings = {name: ending_of(name) for name in (*FORMATS, *more)}

    def chosen(context: click.Context, parameter: click.Parameter, style: str | None) -> str:
        output: Path | None = context.params.get("output")
        if style is not None or output is None:
            return style or next(iter(FORMATS))
        if SPEEDSCOPE not in endings and output.name.lower().endswith(ending_of(SPEEDSCOPE)):
            raise click.BadParameter(f"{output} is a flame graph, and only molprof report by TREE makes one")
        if PARQUET not in endings and output.name.lower().endswith(ending_of(PARQUET)):
            raise click.BadParameter(f"{output} has rows, and only molprof report rows, ranks and query make it")
        fitting = [name for name, ending in endings.items() if output.name.lower().endswith(ending)]
        return max(fitting, key=lambda name: len(endings[name]), default=next(iter(FORMATS)))

    style = click.option(
        "--format",
        "style",
        type=click.Choice(tuple(endings)),
        callback=chosen,
        help=f"Default: what OUT ends in, such as {ending_of('html')}; else {next(iter(FORMATS))}.",
    )
    output = _output_option(is_eager=True, help="Write to OUT, not to stdout.")  # known before the format
    return grouped(ResultOptions, "result", style, output, _force_option)


def ending_of(style: str) -> str:
    """Return the file name suffix of this format."""
    return FORMATS[style][1] if style in FORMATS else {SPEEDSCOPE: ".speedscope.json"}.get(style, f".{style}")


def folder_option(text: str, **settings: Any) -> Callable[[_F], _F]:
    """Add `-o` to a command that fills a folder, which it gets as `folder`."""
    kind = NamedPath(path_type=Path)
    return click.option("-o", "--output", "folder", **{"metavar": "DIR", "type": kind, "help": text, **settings})


def file_option(*endings: str, folder_for: str | None = None, default: str = "") -> Callable[[_F], _F]:
    """Add `-o` and `--force` to a command that writes a file with one of these endings, and nothing to stdout.

    With `folder_for` OUT may be a folder, and the command checks it. With `default`, which says what it then is, it may
    be left out.
    """

    def check(context: click.Context, parameter: click.Parameter, output: Path | None) -> Path | None:
        if folder_for is None and output is not None:
            check_ending(output, endings)
        return output

    folder = "" if folder_for is None else f"; for {folder_for}, a folder"
    said = f"  [default: {default}]" if default else ""
    help_text = f"File to write, {_either(endings)}{folder}.{said}"
    output = _output_option(required=not default, callback=check, help=help_text)
    return lambda command: output(_force_option(command))


all_option = click.option(
    "--all", "whole", is_flag=True, help="Show all sections, not only what fits one screen. Pages and data have all."
)


def given_options(command: _F) -> _F:
    """Add `--tokens` and `--molecules`: numbers that a foreign trace does not record."""
    text = "Number of {what} in a foreign trace. Repeat it for several traces, in their order."
    counts = (("tokens", "generated tokens"), ("molecules", "molecules or other answers"))
    options = (number_option(f"--{name}", multiple=True, help=text.format(what=what)) for name, what in counts)
    return with_options(command, *options)


def refuse(what: str, hint: str, **options: object) -> None:
    """Raise UsageError if one of these options is given, by its name, which `what` excludes."""
    names = [f"{'--'[: len(name)]}{name.replace('_', '-')}" for name, value in options.items() if value]
    if names:
        raise UsageError(f"{what} takes no {_either(names)}", hint)


def check_ending(output: Path, endings: Sequence[str]) -> None:
    """Refuse an OUT that ends in none of `endings`."""
    if not output.name.lower().endswith(tuple(endings)):
        raise click.BadParameter(f"{output} does not end in {_either(endings)}", param_hint="'-o' / '--output'")


def _either(endings: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(endings[:-1]), endings[-1])))


def make_folder(folder: Path, option: str = "-o") -> None:
    """Make the folder of an output and its parents; a bucket has none. Raises UsageError if that fails.

    Those that it made are removed when the command ends, also by an interrupt, where nothing is in them.
    """
    if is_remote(folder):
        return
    missing = [path for path in (folder, *folder.parents) if not path.exists()]

    def remove() -> None:
        with suppress(OSError):
            for path in missing:
                path.rmdir()

    click.get_current_context().call_on_close(remove)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make {folder}: {error.strerror}", hint=f"name another with {option} DIR") from error


def fail_if_option(example: str) -> Callable[[_F], _F]:
    """Add `--fail-if`: thresholds; a broken one is exit code 1."""
    text = (
        f"Exit with 1 if it holds, such as {example}; 'uncertain>5%': if a figure may be off by more. Repeatable. "
        "The first column of molprof compare A B --format csv lists the figures."
    )
    return click.option("--fail-if", "thresholds", multiple=True, metavar="THRESHOLD", help=text)


def judged(outcome: Sequence[Sequence[str]]) -> int:
    """Print thresholds that failed, are undecided, or are exceeded within noise; return the exit code.

    Returns the exit code: 1 for a broken one, 3 for an undecided one.
    """
    failed, undecided, within_noise = outcome
    for kind, lines in {"not failed": within_noise, "undecided": undecided, "failed": failed}.items():
        note(*(f"{kind}: {line}" for line in lines))
    return 1 if failed else 3 if undecided else 0


def note(*texts: str) -> None:
    """Print remarks on stderr, a line each; stdout is for results alone."""
    for text in texts:
        click.echo(escaped(text), err=True)


def sweeps_expanded(paths: Sequence[Path]) -> list[Path]:
    """Return the paths, with a sweep (folder or results) replaced by its traces.

    A remark for each trace that is missing.

    Raises UsageError or TraceError for a sweep without traces, damaged results, and a stream twice.
    """
    refuse_twice(paths)
    if not any(path.is_dir() or path.suffix == ".jsonl" for path in paths):
        return list(paths)
    from molprof.profiler.jobs.index import expanded

    traces, remarks = expanded(paths)
    note(*remarks)
    return traces


def sweep_groups(paths: Sequence[Path], over: str | None) -> list[tuple[str, list[Path]]]:
    """Return the traces of one sweep in groups of two or more that differ in one option.

    None where that is a single group.

    A remark names each trace that has no other to be compared with. Raises UsageError for `over` without a sweep.
    """
    named_traces: list[tuple[str, list[Path]]] = []
    if len(paths) == 1:
        from molprof.profiler.jobs.index import alike

        named_traces = alike(paths[0], over)
    if over is not None and not named_traces:
        raise UsageError("--over is for the traces of one sweep", hint="molprof compare DIR --over OPTION")
    groups = [(name, traces) for name, traces in named_traces if len(traces) > 1]
    if len(named_traces) < 2 or not groups:
        return []
    note(*(f"{traces[0]}: nothing like it to compare it with" for _, traces in named_traces if len(traces) == 1))
    return groups


def refuse_twice(paths: Sequence[Path]) -> None:
    """Raise UsageError where two of the paths are one stream."""
    streams = [path for path in paths if is_stream(path)]
    for index, path in enumerate(streams):
        if any(path == other or is_same(path, other) for other in streams[:index]):
            raise click.UsageError(f"{_stream_text(path)} can be read once only")


def refuse_streams(*paths: Path) -> None:
    """Raise UsageError if one of the paths, which are read more than once, is a stream."""
    for path in filter(is_stream, paths):
        raise click.UsageError(f"{_stream_text(path)} can be read once only: name a file")


def _stream_text(path: Path) -> str:
    return "standard input (-)" if str(path) == STDIN else str(path)


def deliver_texts(texts: Sequence[str], outputs: Sequence[Path | None], style: str, is_list: bool) -> None:
    """Write each text to its file, or all of them to stdout; JSON as a list if requested."""
    if is_list and outputs and outputs[0] is None:
        parts = [text.rstrip("\n") for text in texts]
        write("[\n" + ",\n".join(parts) + "\n]" if style == "json" else "\n\n".join(parts))
        return
    for text, output in zip(texts, outputs, strict=True):
        write(text, output)


def terminal_columns() -> int | None:
    """Return the columns of stdout's terminal; None if it is none. COLUMNS overrides them, as for the help."""
    return shutil.get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else None


def write(result: str | bytes, output: Path | None = None) -> None:
    """Write the finished text or file to OUT, or to stdout."""
    if output is None:
        with writing_stdout():
            click.echo(result.rstrip("\n") if isinstance(result, str) else result, nl=isinstance(result, str))
        return
    with replacing(output) as part:
        text = result if isinstance(result, bytes) else (result.rstrip("\n") + "\n").encode()
        part.write_bytes(text)
    note(f"wrote {output}")
