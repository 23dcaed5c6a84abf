"""A user's query of one trace or several: a name of the package, a file or SQL, with parameters `$key`."""

from __future__ import annotations

import importlib.util
import io
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path

import numpy as np
from msgspec import Struct

from molprof.analysis.frame import Frame
from molprof.analysis.reader import TraceInfo
from molprof.analysis.reader.open import values_named
from molprof.analysis.trace_processor import TraceProcessor
from molprof.common.errors import MissingExtraError, UsageError
from molprof.common.text import shortened
from molprof.queries import PACKAGE, modules
from molprof.queries.catalog import catalog, homes, read_module, suggestion, with_includes

TRACE_COLUMN = "trace"
_GPU_WORK = "gpu_work"
_TOKEN = re.compile(
    r"""
    (?P<skip>
        --[^\n]* | /\*.*?(?:\*/|\Z)                     # comments
      | '(?:[^']|'')*(?:'|\Z) | "(?:[^"]|"")*(?:"|\Z)   # text and quoted names
      | `[^`]*(?:`|\Z) | \[[^\]]*(?:\]|\Z)
    )
    | (?P<parameter>\$[A-Za-z_]\w*)
    | (?P<word>[A-Za-z_]\w*)
    | (?P<end>;)
    | (?P<space>\s+)
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_INTEGER = re.compile(r"([+-]?)0*([0-9]+)")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)(?:[eE][+-]?[0-9]+)?")
_INTEGER_DIGITS = 19  # of 2**63; Python reads no integer of thousands
# Their bodies use $ for arguments.
_DEFINITION = re.compile(r"CREATE (?:OR REPLACE )?PERFETTO (?:FUNCTION|MACRO)\b")
_DEFINITION_WORDS = 5
# Statements that only read, and what writes or reads files wherever it stands, quoted or not.
_READING = frozenset({"SELECT", "WITH", "VALUES", "INCLUDE"})
_CHANGING = frozenset({"INSERT", "UPDATE", "DELETE"})
_FILES = re.compile(r"export_json|load_extension|readfile|writefile", re.IGNORECASE)


class Statement(Struct, frozen=True):
    """SQL with its parameters filled in, and the modules of the package (`launches`) that it needs."""

    sql: str
    modules: tuple[str, ...]


def check_reads(sql: str) -> None:
    """Raise UsageError if a statement of `sql` does anything but select."""
    for part in statements(sql) or [""]:
        words = [text.upper() for kind, text, _ in _tokens(part) if kind == "word"]
        if not words or words[0] not in _READING or _CHANGING.intersection(words) or _FILES.search(part):
            raise UsageError("only SELECT is allowed here", hint="and INCLUDE PERFETTO MODULE, WITH and VALUES")


def find_statement(text: str, parameters: Mapping[str, str], files: bool = True) -> Statement:
    """Return the statement for `text`: a name of the package, a file, or SQL.

    text: a module (`launches`, `molprof.launches`: its example), its table, view or function (`molprof_launch_summary`:
    all columns), the path of a .sql file, or SQL, which need not include the package's modules. parameters: values for
    `$key`s; examples have defaults. Without `files`, no file is read. Raises UsageError for none of these, an
    unreadable file, a missing or unused parameter.
    """
    sources, home = modules(), homes()
    key = f"{PACKAGE}.{text.removeprefix(f'{PACKAGE}.')}"
    if key in sources or text in home:
        module_key = key if key in sources else home[text]
        module = read_module(module_key, sources[module_key])
        sql, entries, values = module.example, module.entries, dict(module.defaults)
        if key not in sources:
            entries = tuple(entry for entry in entries if entry.name == text)
            columns = ",\n".join(f"  {column.name}" for column in entries[0].columns)
            arguments = [argument.name for argument in entries[0].arguments]
            call = f"({', '.join(f'${name}' for name in arguments)})" if arguments else ""
            sql = f"SELECT\n{columns}\nFROM {text}{call}"
            values = {name: value for name, value in values.items() if name in arguments}
        # Examples name their parameters as the functions do.
        types = {argument.name: argument.type for entry in entries for argument in entry.arguments}
        numeric = {name for name, kind in types.items() if kind != "STRING"}
        return Statement(bind(sql, {**values, **parameters}, numeric), (module.name,))
    # os.path: Path refuses SQL that is too long for a file's name.
    sql = _read(text) if files and (text.endswith(".sql") or os.path.isfile(text)) else text
    if sql is text and not any(character.isspace() for character in text):
        raise UsageError(f"no module, table or file {text!r}, and no SQL", hint=suggestion(text, catalog()))
    words = {word for kind, word, _ in _tokens(sql) if kind == "word"}
    needed = sorted({home[word].removeprefix(f"{PACKAGE}.") for word in words & home.keys()})
    return Statement(bind(sql, parameters), tuple(needed))


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}") from error
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", hint="give a .sql file, a module's name, or SQL") from error


def bind(sql: str, parameters: Mapping[str, str], numeric: AbstractSet[str] = frozenset()) -> str:
    """Replace every `$key` outside text, comments and function definitions by its value, and return the SQL.

    A value that reads as a number is one; any other, or one in single quotes, is text. numeric: keys that take numbers
    only, for SQLite would compare text with numbers. Raises UsageError for a `$key` without value, a value without
    `$key`, an integer beyond 64 bits, text for a number.
    """
    used: set[str] = set()
    parts = []
    for kind, text, in_definition in _tokens(sql):
        if kind == "parameter" and not in_definition:
            name = text[1:]
            if name not in parameters:
                raise UsageError(f"the query needs a value for {text}", hint=f"give it one: -p {name}=VALUE")
            used.add(name)
            if name in numeric and _DECIMAL.fullmatch(parameters[name]) is None:
                raise UsageError(
                    f"-p {name}={shortened(parameters[name])}: not a number", hint=f"such as -p {name}=1000"
                )
            text = literal(name, parameters[name])
        parts.append(text)
    if unused := [name for name in parameters if name not in used]:
        raise UsageError(f"the query has no ${unused[0]} to take -p {unused[0]}={shortened(parameters[unused[0]])}")
    bound = "".join(parts)
    try:
        bound.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"the query is not UTF-8 text: {bound[error.start]!r} at character {error.start}") from error
    return bound


def statements(sql: str) -> list[str]:
    """Return the statements of `sql` without empty ones, each at its line and column there."""
    parts: list[str] = []
    start = at = 0
    is_empty = True
    if has_trigger := "TRIGGER" in sql.upper():  # whose body has semicolons of its own
        import sqlite3  # on use: it takes 2 ms
    for kind, text, _ in (*_tokens(sql), ("end", "", False)):
        at += len(text)
        is_empty = is_empty and (kind in ("space", "end") or text.startswith(("--", "/*")))
        if kind != "end" or (text and has_trigger and not is_empty and not sqlite3.complete_statement(sql[start:at])):
            continue
        if not is_empty:
            line = sql.rfind("\n", 0, start) + 1
            parts.append("\n" * sql.count("\n", 0, start) + " " * (start - line) + sql[start:at])
        start, is_empty = at, True
    return parts


def literal(name: str, value: str) -> str:
    """Return a parameter's value as a SQL literal. Raises UsageError for an integer beyond 64 bits."""
    if (match := _INTEGER.fullmatch(value)) and not (
        len(match[2]) <= _INTEGER_DIGITS and -(2**63) <= int(match[1] + match[2]) < 2**63
    ):
        raise UsageError(f"-p {name}={shortened(value)}: integers reach from -2**63 to 2**63 - 1")
    if _DECIMAL.fullmatch(value):
        # In parentheses: two minus signs make a comment.
        return f"({value})" if value[0] in "+-" else value
    if len(value) >= 2 and value[0] == value[-1] == "'":
        value = value[1:-1]
    return "'" + value.replace("'", "''") + "'"


def _tokens(sql: str) -> Iterator[tuple[str, str, bool]]:
    """Yield kind and text of each token, and True if it is in the definition of a function or macro."""
    start: list[str] = []
    for match in _TOKEN.finditer(sql):
        kind, text = match.lastgroup or "other", match[0]
        if kind == "word" and len(start) < _DEFINITION_WORDS:
            start.append(text.upper())
        yield kind, text, bool(_DEFINITION.match(" ".join(start)))
        if kind == "end":
            start = []


class QueryResult(Struct, frozen=True):
    """The frames of a query's statements, in order, and notes about the traces.

    Of several traces, the first column `trace` holds each row's path. Statements such as INCLUDE or CREATE give no
    frame.
    """

    frames: tuple[Frame, ...]
    notes: tuple[str, ...] = ()

    @property
    def frame(self) -> Frame:
        """The only frame. Raises UsageError if there are several."""
        if len(self.frames) > 1:
            hint = "leave one SELECT in it, or use --format table or markdown"
            raise UsageError(f"the query gives {len(self.frames)} results, and this format holds one", hint)
        return self.frames[0]


def run_statement(engine: TraceProcessor, info: TraceInfo, statement: Statement) -> QueryResult:
    """Return the result of each statement of the query for a trace, in order.

    Raises QueryError, UsageError if none gives rows, TraceError, EngineError.
    """
    notes = info.notes()
    if info.lost_events:
        notes.append(f"{info.path}: the trace processor lacks {info.lost_events} events")
    # Apart from the statement, whose errors count lines.
    with values_named(engine, info.path):
        for module in statement.modules:
            engine.query(f"INCLUDE PERFETTO MODULE {PACKAGE}.{module}; SELECT 1")
    answers = [engine.query(part, shown=statement.sql) for part in statements(statement.sql)]
    frames = tuple(Frame(columns) for columns in answers if columns)
    if not frames:
        raise UsageError("the query gives no result", hint="end it with a SELECT")
    if not any(len(frame) for frame in frames) and _lacks_gpu(engine, statement):
        notes.append(f"{info.path}: no rows: the trace has no GPU work")
    return QueryResult(frames, tuple(notes))


def _lacks_gpu(engine: TraceProcessor, statement: Statement) -> bool:
    """Return True if a statement reads GPU work, and the trace has none."""
    all_modules = catalog()
    if not any(_GPU_WORK in with_includes(module, all_modules) for module in statement.modules):
        return False
    sql = f"INCLUDE PERFETTO MODULE {PACKAGE}.{_GPU_WORK}; SELECT COUNT() AS count FROM molprof_{_GPU_WORK}"
    return int(next(iter(engine.query(sql).values()))[0]) == 0


def joined(traces: Sequence[str], results: Sequence[QueryResult]) -> QueryResult:
    """Return the results of one query over several traces as one.

    Each frame has the rows of all traces below each other.
    """
    if len(results) == 1:
        return results[0]
    frames = (_stacked(traces, same) for same in zip(*(result.frames for result in results), strict=True))
    return QueryResult(tuple(frames), tuple(note for result in results for note in result.notes))


def _stacked(traces: Sequence[str], frames: Sequence[Frame]) -> Frame:
    """Return the rows of all traces below each other, with a first column for the trace's path."""
    stacked = {TRACE_COLUMN: np.repeat(np.array(traces, dtype=object), [len(frame) for frame in frames])}
    for name in frames[0].names:
        parts = [frame[name] for frame in frames if len(frame)] or [frames[0][name]]
        # As the engine renames a second column of one name. Mixed types become objects.
        key = f"{name}:1" if name == TRACE_COLUMN else name
        stacked[key] = np.concatenate(parts, dtype=object if len({part.dtype for part in parts}) > 1 else None)
    return Frame(stacked)


def check_parquet() -> None:
    """Raise MissingExtraError where pyarrow is not installed."""
    if importlib.util.find_spec("pyarrow") is None:
        raise MissingExtraError("pyarrow", "parquet", "the format parquet")


def result_to_parquet(result: QueryResult) -> bytes:
    """Return the file's bytes. Raises UsageError for several results."""
    return frame_to_parquet(result.frame)


def frame_to_parquet(frame: Frame) -> bytes:
    """Return the bytes of a Parquet file. Raises MissingExtraError."""
    check_parquet()
    import pyarrow.parquet

    buffer = io.BytesIO()
    pyarrow.parquet.write_table(frame.to_arrow(), buffer, compression="zstd")
    return buffer.getvalue()
