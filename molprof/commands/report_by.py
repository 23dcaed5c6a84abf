"""`molprof report --by`: where the GPU work of a trace comes from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from molprof.analysis.render import FORMATS, render
from molprof.commands.options import note, terminal_columns, write
from molprof.common.errors import UsageError

BYS = ("module", "source", "operator", "kernel")
SPEEDSCOPE = "speedscope"
# Native trace processor, whether damaged traces are read in part, and a trace of the capture phase of graphs.
Reading = tuple[str | None, bool, Path | None]
ENDINGS = {**{name: ending for name, (_, ending) in FORMATS.items()}, SPEEDSCOPE: ".speedscope.json"}


def by_style(by: str | None, style: str, output: Path | None, excluded: Sequence[object]) -> str:
    """Return the format of the result: an OUT that ends in .speedscope.json selects speedscope.

    Raises UsageError for options that exclude each other.
    """
    if output is not None and output.name.lower().endswith(ENDINGS[SPEEDSCOPE]) and style == next(iter(FORMATS)):
        style = SPEEDSCOPE
    if by is None and style == SPEEDSCOPE:
        raise UsageError("speedscope shows a tree, and none is chosen", hint=f"--by {', '.join(BYS[:-1])} or {BYS[-1]}")
    if by is not None and excluded:
        raise UsageError("--by takes no --fail-if, --tokens or --molecules", hint="leave --by or these out")
    return style


def report_by(traces: Sequence[Path], outputs: Sequence[Path | None], by: str, style: str, reading: Reading) -> None:
    """Write the tree of each trace to its file, or all to stdout."""
    from molprof import __version__
    from molprof.analysis.documents.origin import origin_document
    from molprof.analysis.origin.opened import read_opened
    from molprof.analysis.origin.speedscope import speedscope_text

    native_path, partial, capture = reading
    texts = []
    for trace, place in zip(traces, outputs, strict=True):
        origins, _, remarks = read_opened(trace, capture, native_path=native_path, partial=partial)
        for remark in remarks:
            note(remark)
        if style == SPEEDSCOPE:
            text = speedscope_text(origins, by, f"molprof {__version__}")
        else:
            text = render(origin_document(origins, by), style, terminal_columns() if place is None else None)
        if place is None:
            texts.append(text.rstrip("\n"))
        else:
            write(text, place)
    if texts:
        several = style == "json" and len(texts) > 1
        write("[\n" + ",\n".join(texts) + "\n]" if several else "\n\n".join(texts))
