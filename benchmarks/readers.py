"""The readers that `read.py` measures, and the floors below which a reader of Python and this engine cannot come."""

from __future__ import annotations

import sys
from dataclasses import dataclass

_COUNT = """
import sys
from isal import igzip
total = 0
with igzip.open(sys.argv[1]) as file:
    while block := file.read(1 << 20):
        total += len(block)
"""
# The quickest decoder of Python that gives every event as an object with its phase, category, name, place and times.
_DECODE = """
import sys
from contextlib import closing
from pathlib import Path
import msgspec
from molprof.analysis.reader.document import Document
from molprof.analysis.reader.part import Part
from molprof.analysis.reader.pieces import Pieces
from molprof.analysis.reader.source import open_source
Id = int | str | None
fields = [("ph", str), ("cat", str | None, None), ("name", str | None, None), ("pid", Id, None), ("tid", Id, None),
          ("ts", float, 0.0), ("dur", float | None, None)]
decode = msgspec.json.Decoder(list[msgspec.defstruct("Event", fields, gc=False)]).decode
with open_source(Path(sys.argv[1])) as source:
    document = Document(source.name, source.blocks, Pieces(lambda text: Part(len(decode(text)))), False)
    events = sum(part.events for part in document.parts())
"""
# What the engine gets of a trace, as a file.
RECORDS = """
import sys
from pathlib import Path
from molprof.analysis.reader.feeding import compact_chunks
from molprof.analysis.reader.events import Wanted
from molprof.analysis.reader.load import survey_source
from molprof.analysis.reader.places import find_places
from molprof.analysis.reader.source import open_source
with open_source(Path(sys.argv[1])) as source:
    _, found = survey_source(source, Wanted(stacks=False, all_args=False, arguments=False), False)
with open(sys.argv[2], "wb") as file:
    for chunk in compact_chunks(found, find_places(found)):
        file.write(chunk)
"""
_ENGINE = """
import sys
from molprof.analysis.trace_processor import open_engine
with open_engine() as engine, open(sys.argv[1], "rb") as file:
    while block := file.read(1 << 21):
        engine.feed(block)
    engine.finish()
    engine.query("SELECT SUM(ts), SUM(dur), COUNT(name), COUNT(category), SUM(track_id), SUM(arg_set_id) FROM slice")
    engine.query("SELECT COUNT(flat_key), SUM(int_value), COUNT(string_value), SUM(arg_set_id) FROM args")
"""
_JSON = """
import gzip, json, sys
with (gzip.open if sys.argv[1].endswith("gz") else open)(sys.argv[1]) as file:
    json.load(file)
"""
_RAW = """
import sys
from isal import igzip
from molprof.analysis.trace_processor import open_engine
with open_engine(memory64=True) as engine, igzip.open(sys.argv[1]) as file:
    while block := file.read(1 << 20):
        engine.feed(block)
    engine.finish()
    engine.query("SELECT category, COUNT() FROM slice GROUP BY category")
"""
_OPEN = """
import sys
from molprof.analysis.reader.open import open_trace
with open_trace(sys.argv[1]{}) as (engine, info):
    assert info.lost_events == 0
"""
_HTA = """
import sys
from hta.trace_analysis import TraceAnalysis
TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="").get_gpu_kernel_breakdown(visualize=False)
"""
_TRACELENS = """
import sys
from TraceLens import TreePerfAnalyzer
TreePerfAnalyzer.from_file(sys.argv[1]).get_df_gpu_timeline()
"""


@dataclass(frozen=True)
class Tool:
    """A way to read the file: Python code, or arguments of `python -m molprof`."""

    title: str
    code: str | None = None
    arguments: tuple[str, ...] = ()
    package: str | None = None
    repeated: bool = False  # measured as often as asked for; else once
    records: bool = False  # reads what the engine gets, in place of the trace

    def command(self, python: str) -> list[str]:
        """Return the command without the file that it reads."""
        how = ["-m", "molprof", *self.arguments] if self.code is None else ["-c", self.code]
        return [python if self.package else sys.executable, *how]


TOOLS = {
    "molprof": Tool("molprof report (new)", arguments=("report", "--no-cache", "--format", "json"), repeated=True),
    "read": Tool("molprof, reading alone", _OPEN.format(", stacks=False, all_args=False"), repeated=True),
    "whole": Tool("molprof, all events and args", _OPEN.format("")),
    "cached": Tool("molprof report (again)", arguments=("report", "--format", "json"), repeated=True),
    "count": Tool("floor: decompress, count bytes", _COUNT, repeated=True),
    "decode": Tool("floor: decompress and decode, one process", _DECODE, repeated=True),
    "engine": Tool("floor: the engine loads, one pass over its tables", _ENGINE, repeated=True, records=True),
    "json": Tool("json.load", _JSON),
    "raw": Tool("the same engine fed the raw file", _RAW),
    "hta": Tool("HolisticTraceAnalysis", _HTA, package="hta"),
    "tracelens": Tool("TraceLens", _TRACELENS, package="TraceLens"),
}
