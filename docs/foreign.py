"""Writes docs/foreign-traces.md: the table and the predictions of the original question, for two public GPU traces.

MOLPROF_CORPUS=FOLDER python docs/foreign.py    # FOLDER/traces holds the two files
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from study import Study, rendered, table

from molprof import api
from molprof.analysis.compare import compare
from molprof.analysis.compare.thresholds import RELEVANT
from molprof.analysis.reports import with_given
from molprof.common.files import replacing
from molprof.common.values import NOT_RECORDED

PAGE = Path(__file__).parent / "foreign-traces.md"


@dataclass(frozen=True)
class Public:
    """A public trace: its file, what it is, and what it generated, as the shapes in it tell."""

    file: str
    what: str
    tokens: int
    sequences: int


TRACES = (
    Public(
        "h100_qwen1.5_0.5b.json.gz",
        "Qwen1.5-0.5B, transformers, one forward of 16 sequences of 559 tokens, H100; `tests/traces/h100`",
        16,
        16,
    ),
    Public(
        "b200_vllm_eager.json.gz",
        "vLLM, eager, the prefill of one sequence of 888 tokens, rank 0 of 8, B200; `tests/traces/b200`",
        1,
        1,
    ),
)
# Rows of the original question, then what was looked for to answer it.
FIGURES = (
    "wall_ns", "device_span_ns", "launches", "launches_per_token", "launches_per_molecule", "launches_per_step",
    "copy_kernels", "copy_kernels_ns", "free_positions_per_block", "masked_logits_per_molecule",
    "tokens_per_molecule", "drift_blocks", "junk_tokens", "elementwise_to_attention",
)  # fmt: skip
LOOKED_FOR = (
    "kernels", "kernels_per_token", "gpu_ns_per_token", "copy_kernels_per_step", "cat_kernels", "cat_kernels_per_step",
    "cat_kernels_ns", "attention_kernels", "attention_kernels_per_step", "attention_kernels_ns", "elementwise_kernels",
    "elementwise_kernels_per_step", "elementwise_kernels_ns", "masking_candidates", "masking_candidates_per_step",
    "memcpy_htod", "memcpy_dtoh", "memcpy_dtod", "memcpy_dtod_ns", "syncs_per_step", "busy_ratio",
)  # fmt: skip
QUERIES = (
    ("top operations by total time", "molprof query top_operations TRACE"),
    ("operations over 100 ms, in order", "molprof query long_operations TRACE"),
    ("short and frequent operations", "molprof query small_operations TRACE"),
    ("memory operations", "molprof query memory_copies TRACE"),
    ("attention kernels", "molprof query attention TRACE"),
    ("masking candidates (index, fill, put, scatter)", "molprof query masking TRACE"),
    ("kinds of work, in the trace and in its steps", "molprof query work_kinds TRACE"),
    ("which kernel is of which class", "molprof query kernel_classes TRACE"),
)


def page(corpus: Path) -> str:
    """docs/foreign-traces.md, of the traces in `corpus`/traces."""
    paths = [corpus / "traces" / trace.file for trace in TRACES]
    reports = with_given(
        api.reports(paths),
        [trace.tokens for trace in TRACES],
        [trace.sequences for trace in TRACES],
    )
    names = [trace.file.partition(".json")[0] for trace in TRACES]
    study = Study("foreign", dict(zip(names, reports, strict=True)))
    found = compare(reports)
    told = " ".join(
        f"--{option} {value}"
        for option in ("tokens", "molecules")
        for value in [trace.tokens if option == "tokens" else trace.sequences for trace in TRACES]
    )
    verdicts = [
        (
            item.text,
            *(study.value(name, item.metric) for name in names),
            NOT_RECORDED if item.ratio is None else f"{item.ratio:.3g}x",
            item.verdict,
        )
        for item in found.predictions
    ]
    return rendered(
        PAGE.with_suffix(".md.jinja"),
        not_recorded=NOT_RECORDED,
        files=table(("file here", "what"), [(f"`{trace.file}`", trace.what) for trace in TRACES], "---"),
        names=" ".join(trace.file for trace in TRACES),
        told=told,
        original=study.figures(names, FIGURES),
        looked_for=study.figures(names, LOOKED_FOR),
        counts=reports[0].counts,
        relevant=f"{100 * RELEVANT:.0f} %",
        verdicts=table(("expected of the first", *names, "ratio", "verdict"), verdicts, "---"),
        queries=table(("question", "command"), [(question, f"`{command}`") for question, command in QUERIES], "---"),
    )


def main() -> None:
    with replacing(PAGE) as part:
        part.write_text(page(Path(os.environ["MOLPROF_CORPUS"])), encoding="utf-8")


if __name__ == "__main__":
    main()
