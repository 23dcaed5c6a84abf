"""Writes the tables of docs/certificate.md: the checks, and what they found in the public traces of the corpus.

MOLPROF_CORPUS=FOLDER python docs/certified.py
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from molprof import api
from molprof.analysis.documents.figures import WORDS, bound_text
from molprof.analysis.figures import Report
from molprof.analysis.figures.certificate import CHECKS
from molprof.common.files import replacing

PAGE = Path(__file__).parent / "certificate.md"
# Traces of the corpus that the page shows, whatever else lies there.
TRACES = (
    "traces/b200_vllm_eager.json.gz",
    "traces/h100_qwen1.5_0.5b.json.gz",
    "traces/mi300x_sglang_qwen3_8b_decode.json.gz",
    "traces/mi300x_vllm_decode_graph.json.gz",
    "traces/mi300x_vllm_piecewise_graph.json.gz",
    "traces/torch_compile_triton.json.gz",
    "traces/v100_resnet_ddp.json.gz",
    "pairs/mi300_qwen1.5_0.5b.json.gz",
    "graphs/mi300x_sglang_qwen3_8b_capture_bs32.json.gz",
    "ranks/megatron_tp8_rank0.json.gz",
    "ranks/megatron_tp8_rank1.json.gz",
    "ranks/megatron_tp8_rank2.json.gz",
    "ranks/megatron_tp8_rank3.json.gz",
    "native/cuda_graph.pftrace",
    "native/eager.pftrace",
    "native/monitor.pftrace",
)
BEGIN, END = "<!-- docs/certified.py writes from here: {} -->", "<!-- to here -->"


def checks_table() -> str:
    rows = [
        f"| `{check.id}` | {check.title} | [`{module}`](queries.md#{module}) |"
        for check in CHECKS
        for module in [check.queries[0].module]
    ]
    return "\n".join(["| check | passes if | SQL |", "| --- | --- | --- |", *rows])


def reports(corpus: Path) -> dict[str, Report]:
    return {name: api.report(corpus / name) for name in TRACES}


def traces_table(found: Mapping[str, Report]) -> str:
    """One row for each doubt, and one for each trace without any."""
    rows = [row for name, report in found.items() for row in _rows(name, report)]
    return "\n".join(
        ["| trace | figures | verdict | bounds | check | reason |", "| --- | --- | --- | --- | --- | --- |", *rows]
    )


def _rows(name: str, report: Report) -> Iterator[str]:
    certificate = report.certificate
    assert certificate is not None
    if not certificate.doubts:
        yield f"| `{name}` | all | exact | | | |"
    for doubt in certificate.doubts:
        group = next(item.title for item in certificate.groups if item.group == doubt.group)
        bounds = "; ".join(map(bound_text, doubt.bounds))
        yield f"| `{name}` | {group} | {WORDS[doubt.verdict]} | {bounds} | `{doubt.check}` | {doubt.reason} |"


def page(tables: dict[str, str]) -> str:
    text = PAGE.read_text(encoding="utf-8")
    for name, table in tables.items():
        before, rest = text.split(BEGIN.format(name))
        text = f"{before}{BEGIN.format(name)}\n{table}\n{END}{rest.split(END, 1)[1]}"
    return text


def main() -> None:
    """Write both tables; without the corpus, the first."""
    tables = {"checks": checks_table()}
    if corpus := os.environ.get("MOLPROF_CORPUS"):
        tables["traces"] = traces_table(reports(Path(corpus)))
    else:
        sys.stderr.write("MOLPROF_CORPUS is not set: the table of traces stays as it is\n")
    text = page(tables)
    with replacing(PAGE) as part:
        part.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
