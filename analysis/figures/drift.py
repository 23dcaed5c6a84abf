"""Drift and disagreement of a captured run, read from the token tracks."""

from __future__ import annotations

from molprof.analysis.drift.blocks import Block, drift_figures
from molprof.analysis.drift.disagreement import Token, disagreement_figures
from molprof.analysis.drift.model import Disagreement, Drift
from molprof.analysis.engine import Engine
from molprof.analysis.engine.package import Query, query_rows

# Columns in the order of Block's and Token's fields.
_BLOCKS = Query(
    "drift",
    """
SELECT sequence, block, text, junk, filler, needed, drift, junk_position, marked_text, surplus_text
FROM molprof_block
ORDER BY sequence, block
""",
)
_TOKENS = Query(
    "disagreement",
    """
SELECT sequence, position, text, kind, choice, probability, rank, forbidden
FROM molprof_token_disagreement
ORDER BY sequence, position
""",
)


def read_drift(engine: Engine) -> Drift:
    """Drift of the captured run in the engine."""
    return drift_figures([Block(*row) for row in query_rows(engine, _BLOCKS)[1]])


def read_disagreement(engine: Engine) -> Disagreement | None:
    """The model's own choices; None where the run did not record them."""
    return disagreement_figures([Token(*row) for row in query_rows(engine, _TOKENS)[1]])
