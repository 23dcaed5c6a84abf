"""Four expectations about a LLaMA-tokenized model against a Qwen-tokenized one, held against the figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from molprof.analysis.compare.model import Prediction, Unit, Verdict
from molprof.analysis.compare.rows import elementwise_to_attention
from molprof.analysis.metrics.run_model import Run

LOWER = "llama"
HIGHER = "qwen"


@dataclass(frozen=True)
class Expectation:
    """A figure that is expected to be lower for LLaMA than for Qwen."""

    id: str
    text: str
    unit: Unit
    value: Callable[[Run], float | None]


EXPECTATIONS = (
    Expectation(
        "fewer_tokens_per_molecule",
        "fewer tokens per molecule",
        "number",
        lambda run: run.generated_tokens / run.molecules if run.molecules else None,
    ),
    Expectation(
        "fewer_launches_per_molecule",
        "fewer launches per molecule",
        "number",
        lambda run: run.launches_per_molecule,
    ),
    Expectation(
        "fewer_elementwise_per_attention",
        "fewer elementwise kernels per attention kernel",
        "number",
        elementwise_to_attention,
    ),
    Expectation("faster", "less time end to end", "ns", lambda run: run.wall_ns.median),
)


def predictions(labels: Sequence[str], runs: Sequence[Run | None]) -> tuple[Prediction, ...]:
    """The verdict on each expectation, from the first two runs of unlike family, alike in processor use."""
    pair = _pair(labels, runs)
    return tuple(_judge(expectation, pair) for expectation in EXPECTATIONS)


def _pair(labels: Sequence[str], runs: Sequence[Run | None]) -> tuple[tuple[str, Run], tuple[str, Run]] | None:
    """A LLaMA and a Qwen run, both with a processor or else both without."""
    known = [(name, run) for name, run in zip(labels, runs, strict=True) if run is not None]
    for constrained in (True, False):
        alike = [item for item in known if (item[1].setup.processor is not None) is constrained]
        lower = next((item for item in alike if item[1].setup.family.startswith(LOWER)), None)
        higher = next((item for item in alike if item[1].setup.family.startswith(HIGHER)), None)
        if lower and higher:
            return lower, higher
    return None


def _judge(expectation: Expectation, pair: tuple[tuple[str, Run], tuple[str, Run]] | None) -> Prediction:
    if pair is None:
        return Prediction(expectation.id, expectation.text, "not recorded", expectation.unit, {})
    figures = {name: expectation.value(run) for name, run in pair}
    lower, higher = figures.values()
    if lower is None or higher is None:
        return Prediction(expectation.id, expectation.text, "not recorded", expectation.unit, figures)
    verdict: Verdict = "confirmed" if lower < higher else "refuted"
    return Prediction(expectation.id, expectation.text, verdict, expectation.unit, figures)
