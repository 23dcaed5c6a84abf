"""Generated tokens, steps, and the blocks of coordinates."""

from __future__ import annotations

from collections.abc import Callable

from molprof.analysis.figures.figure import Figure, of_run, per_molecule
from molprof.analysis.figures.run_model import Run
from molprof.common.values import Unit

_GROUP = "Tokens"


def _of_run(
    name: str, label: str, value: Callable[[Run], float | None], unit: Unit = "count", compared: bool = True
) -> Figure:
    return Figure(name, _GROUP, label, unit, of_run(value), compared=compared)


TOKENS = (
    _of_run("generated_tokens", "generated tokens", lambda run: run.generated_tokens, compared=False),
    Figure(
        "tokens_per_molecule",
        _GROUP,
        "tokens per molecule",
        "number",
        per_molecule(lambda run: run.generated_tokens),
    ),
    _of_run("decode_steps", "decode steps", lambda run: run.decode_steps),
    _of_run("idle_row_steps", "idle row-steps (row finished)", lambda run: run.idle_row_steps),
    _of_run("blocks", "coordinate blocks", lambda run: run.blocks),
    _of_run(
        "free_positions_per_block",
        "FREE positions per coordinate",
        lambda run: run.free_positions_per_block,
        "number",
    ),
    _of_run(
        "coordinate_tokens_per_block",
        "tokens that a coordinate took",
        lambda run: run.coordinate_tokens_per_block,
        "number",
    ),
    _of_run("junk_tokens", "junk tokens", lambda run: run.junk_tokens),
    _of_run("junk_blocks", "junk coordinates", lambda run: run.junk_blocks),
    _of_run("filler_tokens", "filler tokens", lambda run: run.filler_tokens),
    _of_run("malformed_blocks", "malformed coordinates", lambda run: run.malformed_blocks),
    _of_run("cut_blocks", "cut coordinate blocks", lambda run: run.cut_blocks, compared=False),
    _of_run("skipped", "skipped input lines", lambda run: run.skipped, compared=False),
)
