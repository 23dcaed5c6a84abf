"""Golden files: the output of commands on known input, compared with `tests/goldens/` or written there.

    python tests/goldens.py            # which files differ
    python tests/goldens.py --write    # make them anew
    python tests/goldens.py --show report/cpu-llama.xz

A golden file holds one or more commands, each with its exit code, stderr, stdout, and a summary of files that it wrote.
Names that end in `.xz` are packed. Those of traces in MOLPROF_CORPUS are left alone where it is not set.
"""

from __future__ import annotations

import argparse
import difflib
import functools
import gc
import gzip
import hashlib
import html.parser
import io
import json
import logging
import lzma
import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest import mock

from golden_commands import GOLDENS, Golden

from molprof import __version__
from molprof.cli import main as molprof

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "tests/goldens"
GIVEN = FOLDER / "given"  # small inputs, most of them broken
CORPUS = os.environ.get("MOLPROF_CORPUS")
_HEAD = "$ "
_DIFF_LINES = 60
_MOST_BYTES = 10_000  # of a written file that is shown whole
# What depends on time in a manifest and in the JSON of a report.
_LASTING = ("settings", "resolved", "window", "steps_per_batch", "rows_per_step", "skipped", "molecules")
# Groups of the certificate doubt times on a busy machine; how many functions are sampled varies.
_MEASURED = ("findings", "machine", "groups", "functions")
_INTERRUPTED = 130  # exit code
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


def run(golden: Golden, command: str, folder: Path) -> str:
    """Run a command of a golden in an empty folder; its exit code, stderr, stdout and files as one text."""
    if golden.varies:
        return _lasting(command, folder)
    for name, place in (("traces", ROOT / "traces"), ("corpus", CORPUS)):
        if place:
            (folder / name).symlink_to(place)
    shutil.copytree(GIVEN, folder / "given")
    (folder / "given/empty").mkdir()
    before = {path: path.read_bytes() for path in folder.glob("given/*") if path.is_file()}
    parts = []
    for words in map(shlex.split, command.split(" && ")):
        columns = words.pop(0).partition("=")[2] if words[:1] and words[0].startswith("COLUMNS=") else None
        code, out, err = called(words, folder, columns)
        text = _page(out) if "<!DOCTYPE html>" in out else out
        parts.append(
            "".join([f"exit code {code}\n", *(f"stderr: {line}".rstrip() + "\n" for line in _lines(err)), text])
        )
    made = sorted(
        path for path in folder.glob("[!ct]*/**/*") if path.is_file() and before.get(path) != path.read_bytes()
    )
    made += sorted(path for path in folder.iterdir() if path.is_file())
    parts += [f"wrote {path.relative_to(folder)}: {_summary(path)}\n" for path in made]
    return normal("".join(parts), folder)


def _lasting(command: str, folder: Path) -> str:
    """Of a capture and its reports what does not vary: settings, answers, events, JSON schema, rows of the table."""
    capture, *reports = map(shlex.split, command.split(" && "))
    _, report, table = (called(words, folder)[1] for words in (capture, *reports))
    (path,) = folder.glob("*.json.gz")
    trace = json.loads(gzip.decompress(path.read_bytes()))
    manifest = trace["molprof"]
    for molecule in manifest["molecules"]:
        for name in ("probabilities", "removed"):  # their last digits are the processor's
            del molecule["disagreement"][name]
    kept = [f"{key}: {json.dumps(manifest[key], ensure_ascii=False, sort_keys=True)}" for key in _LASTING]
    # Names of threads are of all that the process has, which other tests began.
    events = Counter(str(event.get("cat", event["ph"])) for event in trace["traceEvents"] if event["ph"] != "M")
    schema: dict[str, set[str]] = {}
    _add_types(json.loads(report), "", schema)
    types = [f"{key}: {' | '.join(sorted(kinds))}" for key, kinds in sorted(schema.items())]
    return "\n".join([*kept, str(sorted(events.items())), *types, *_labels(table)]) + "\n"


def _add_types(value: Any, place: str, found: dict[str, set[str]]) -> None:
    """Add the type of the value at a place in JSON, and of all in it. An integer is a number."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    found.setdefault(place, set()).add("number" if number else type(value).__name__)
    items = (
        value.items()
        if isinstance(value, dict)
        else (("[]", item) for item in value)
        if isinstance(value, list)
        else ()
    )
    for key, item in items:
        if key not in _MEASURED:
            _add_types(item, f"{place}.{key}", found)


def _labels(table: str) -> list[str]:
    """The title and the first column of each section of figures."""
    sections = [section.splitlines() for section in table.split("\n\n")]
    figures = [lines for lines in sections if any(line.split()[:1] in (["figure"], ["setting"]) for line in lines)]
    return [re.split(r"\s{2,}", line.strip())[0] for lines in figures for line in lines if not line.startswith("    ")]


def called(arguments: Sequence[str], folder: Path, columns: str | None = None) -> tuple[int, str, str]:
    """The command line, in this process: exit code, stdout, and stderr."""
    out = (io.TextIOWrapper if columns is None else _Terminal)(io.BytesIO(), encoding="utf-8")
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with _unchanged_process(), redirect_stdout(out), redirect_stderr(err):
        os.chdir(folder)
        os.environ.update(COLUMNS=columns or "80", HF_HUB_OFFLINE="1")
        os.environ.pop("MOLPROF_TRACE_PROCESSOR", None)
        try:
            molprof(list(arguments))
        except SystemExit as ended:
            code = ended.code
    assert isinstance(code, int)
    if code == _INTERRUPTED:
        raise KeyboardInterrupt  # it was meant for this process; no golden is of an interrupted command
    return code, *(_text(stream) for stream in (out, err))  # type: ignore[return-value]


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    raw = stream.buffer
    assert isinstance(raw, io.BytesIO)
    return raw.getvalue().decode()


@contextmanager
def _unchanged_process() -> Iterator[None]:
    """Undo what the command line changes of its process, which ends with it elsewhere."""
    logger = logging.getLogger("molprof")
    kept_logger = logger.handlers, logger.propagate, logger.level
    environment, place, garbage, hook = dict(os.environ), Path.cwd(), gc.get_threshold(), sys.unraisablehook
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        with mock.patch("gc.freeze"):
            yield
    finally:
        os.chdir(place)
        os.environ.clear()
        os.environ.update(environment)
        gc.set_threshold(*garbage)
        sys.unraisablehook = hook
        for number, handler in handlers.items():
            signal.signal(number, handler)
        logger.handlers, logger.propagate = kept_logger[:2]
        logger.setLevel(kept_logger[2])


def normal(text: str, folder: Path) -> str:
    """Replace what differs between machines, versions and days."""
    text = re.sub(r"^stderr: read \d+ of \d+ files, about .* left\n", "", text, flags=re.MULTILINE)  # on a busy machine
    for place, name in ((str(folder), "FOLDER"), (CORPUS, "CORPUS"), (str(ROOT), "ROOT"), (str(Path.home()), "HOME")):
        if place:
            text = text.replace(place, name)
    return re.sub(rf"\b(molprof[ @]){re.escape(__version__)}", r"\1VERSION", text)


class _Page(html.parser.HTMLParser):
    """The text of a page, a line per paragraph, row and label of a plot; shortened cells with the whole name."""

    SKIPPED = ("style", "script")
    CELLS = ("td", "th", "dt")

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._skipping = 0
        self._full: str | None = None

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self._skipping += tag in self.SKIPPED
        if tag not in ("span", "wbr"):  # inside a cell
            self._full = dict(attributes).get("title")
        if tag == "h2":
            self.parts.append("\n## ")

    def handle_endtag(self, tag: str) -> None:
        self._skipping -= tag in self.SKIPPED
        if self._full:
            self.parts.append(f" [{self._full}]")
            self._full = None
        if tag in self.CELLS:
            self.parts.append(" | ")
        elif tag not in ("span", "button", "a", "tspan", "g"):
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._skipping:
            self.parts.append(re.sub(r"\s+", " ", data))


def _lines(err: str) -> list[str]:
    """Of stderr, but for the progress that only a slow machine, or one with an empty cache, has time to tell."""
    return [line for line in err.splitlines() if not re.fullmatch(r"read \d+ of \d+ traces.*", line)]


def _page(text: str) -> str:
    page = _Page()
    page.feed(text)
    lines = (line.strip() for line in "".join(page.parts).splitlines())
    return "\n".join(line for line in lines if line) + "\n"


def _summary(path: Path) -> str:
    """Of a trace its events and a digest, of another file its text."""
    data = path.read_bytes()
    data = gzip.decompress(data) if path.suffix == ".gz" else data
    digest = hashlib.sha256(data).hexdigest()[:16]
    if b'"traceEvents"' not in data:
        return f"\n{data.decode()}" if len(data) < _MOST_BYTES else f"sha256 {digest}"
    content = json.loads(data)
    counts = sorted(Counter(str(event.get("cat", event["ph"])) for event in content["traceEvents"]).items())
    return f"sha256 {digest}, keys {', '.join(sorted(content))}\n" + "".join(f"  {n:6} {name}\n" for name, n in counts)


def block(command: str, text: str) -> str:
    """A command and what it printed, as a golden file holds it. Lines that look like a command's are indented."""
    text = re.sub(r"^\$ ", " $ ", text, flags=re.MULTILINE)
    return f"{_HEAD}molprof {command}".rstrip() + f"\n{text.rstrip()}\n\n"


@functools.lru_cache(maxsize=4)
def stored(name: str) -> dict[str, str]:
    """The blocks of a golden file by their first line; none if there is no such file."""
    path = FOLDER / name
    if not path.exists():
        return {}
    data = path.read_bytes()
    text = (lzma.decompress(data) if path.suffix == ".xz" else data).decode()
    blocks = (f"{_HEAD}{part}" for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:])
    return {part.split("\n", 1)[0]: part for part in blocks}


def _alike(one: Sequence[str], two: Sequence[str]) -> int:
    """How many lines two texts have in common before the first that differs."""
    return next((n for n, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))


def difference(expected: str, found: str) -> str:
    """The first lines in which two texts differ; empty if they are equal."""
    if expected == found:
        return ""
    old, new = expected.splitlines(), found.splitlines()
    same = _alike(old, new)
    behind = _alike(old[same:][::-1], new[same:][::-1])
    first, end = max(same - 3, 0), same + 4 * _DIFF_LINES  # to compare all of two long texts takes minutes
    is_cut = max(len(old), len(new)) - behind > end
    behind = behind if is_cut else max(behind - 3, 0)
    one, two = (lines[first : min(len(lines) - behind, end)] for lines in (old, new))
    *changes, last = difflib.SequenceMatcher(None, one, two).get_opcodes()
    if is_cut and last[0] != "equal" and any(change[0] != "equal" for change in changes):
        one, two = one[: last[1]], two[: last[3]]  # after lines that moved, the cuts are at different places
    lines = list(difflib.unified_diff(one, two, "golden", f"now, from line {first + 1}", lineterm=""))
    more = [f"... {len(old):,} lines in all, {len(new):,} now"]
    return "\n".join(line[:300] for line in [*lines[:_DIFF_LINES], *more])


def text_now(golden: Golden) -> str:
    parts = []
    for command in golden.commands:
        with tempfile.TemporaryDirectory() as folder:
            parts.append(block(command, run(golden, command, Path(folder).resolve())))
    return "".join(parts)


def _packed(name: str, text: str) -> bytes:
    data = text.encode()
    return lzma.compress(data, preset=9 | lzma.PRESET_EXTREME) if name.endswith(".xz") else data


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="beginnings of names of golden files; default: all")
    parser.add_argument("--write", action="store_true", help="make them anew")
    parser.add_argument("--show", metavar="NAME", help="print what a golden file holds")
    options = parser.parse_args()
    if options.show:
        sys.stdout.write("".join(stored(options.show).values()))
        return
    chosen = [item for item in GOLDENS if not options.names or item.name.startswith(tuple(options.names))]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        changed = _changed(chosen)
        packed = {FOLDER / name: _packed(name, text) for name, text in changed.items() if options.write}
    except KeyboardInterrupt:
        sys.exit("interrupted; nothing was written")
    for path, data in packed.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    sys.exit(bool(changed) and not options.write)


def _changed(goldens: Sequence[Golden]) -> dict[str, str]:
    """The text now of each golden file that differs, by name; prints the differences."""
    changed = {}
    with tempfile.TemporaryDirectory() as cache:
        os.environ["MOLPROF_CACHE"] = cache
        for golden in goldens:
            if golden.needs_corpus and not CORPUS:
                sys.stderr.write(f"{golden.name} left alone: MOLPROF_CORPUS is not set\n")
                continue
            text = text_now(golden)
            if different := difference("".join(stored(golden.name).values()), text):
                sys.stdout.write(f"{golden.name}\n{different}\n")
                changed[golden.name] = text
    return changed


if __name__ == "__main__":
    main()
