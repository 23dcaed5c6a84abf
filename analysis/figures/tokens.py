"""Generated tokens, steps, and coordinate blocks."""

from __future__ import annotations

from collections.abc import Callable

from molprof.analysis.figures.figure import Figure, of_run
from molprof.analysis.figures.run_model import Run
from molprof.common.values import Unit, per


def _figure(
    name: str, label: str, value: Callable[[Run], float | None], unit: Unit = "count", compared: bool = True
) -> Figure:
    return Figure(name, "Tokens", label, unit, of_run(value), compared=compared)


TOKENS = (
    _figure("generated_tokens", "generated tokens", lambda run: run.generated_tokens, compared=False),
    _figure(
        "tokens_per_molecule", "tokens per molecule", lambda run: per(run.generated_tokens, run.molecules), "number"
    ),
    _figure("decode_steps", "decode steps", lambda run: run.decode_steps),
    _figure("idle_row_steps", "steps on finished rows", lambda run: run.idle_row_steps),
    _figure("blocks", "coordinate blocks", lambda run: run.blocks),
    _figure(
        "free_positions_per_block",
        "FREE positions per block",
        lambda run: run.free_positions_per_block,
        "number",
    ),
    _figure(
        "coordinate_tokens_per_block",
        "coordinate tokens per block",
        lambda run: run.coordinate_tokens_per_block,
        "number",
    ),
    _figure("junk_tokens", "junk tokens", lambda run: run.junk_tokens),
    _figure("junk_blocks", "blocks with junk", lambda run: run.junk_blocks),
    _figure("filler_tokens", "filler tokens", lambda run: run.filler_tokens),
    _figure("malformed_blocks", "malformed blocks", lambda run: run.malformed_blocks),
    _figure("cut_blocks", "cut blocks", lambda run: run.cut_blocks, compared=False),
    _figure("skipped", "skipped input lines", lambda run: run.skipped, compared=False),
)
