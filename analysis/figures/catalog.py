"""Every figure, in the order in which they are shown."""

from __future__ import annotations

from molprof.analysis.figures.figure import Figure
from molprof.analysis.figures.kernels import KERNELS
from molprof.analysis.figures.launches import LAUNCHES
from molprof.analysis.figures.masking import MASKING
from molprof.analysis.figures.settings import SETTINGS
from molprof.analysis.figures.times import TIMES
from molprof.analysis.figures.tokens import TOKENS

FIGURES: tuple[Figure, ...] = (*SETTINGS, *TIMES, *TOKENS, *LAUNCHES, *KERNELS, *MASKING)
# Those that comparisons show, by id.
COMPARED = {figure.id: figure for figure in FIGURES if figure.compared}
# Metrics of --fail-if and predictions, by id.
METRICS = {name: figure for name, figure in COMPARED.items() if figure.unit != "text"}
