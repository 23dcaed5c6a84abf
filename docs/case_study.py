"""Writes docs/case-study.md, the example in docs/comparing.md, and traces/README.md: from traces/ and docs/results/.

python docs/case_study.py
"""

from __future__ import annotations

import gzip
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace
from questions import MODELS, QUESTIONS, Question
from study import CPU, Study, prefixes, read_study, rendered, table

from molprof import api
from molprof.analysis.compare import compare
from molprof.analysis.documents.comparison import comparison_document
from molprof.analysis.render import render
from molprof.common.files import replacing
from molprof.common.values import NOT_RECORDED, counted, number_text, percent_text, time_text

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- docs/case_study.py writes from here -->", "<!-- to here -->"
REHEARSAL = "**Rehearsal: simulated, not measured.**"
EXAMPLE = ("llama-generic", "qwen-generic")
# Of the table of the original question: its runs, and its figures.
COMPARED = tuple(f"{model}{tail}" for model in MODELS for tail in ("", "-generic"))
FIGURES = (
    "wall_ns", "tokens_per_molecule", "launches", "launches_per_molecule", "launches_per_token",
    "copy_kernels_per_step", "cat_kernels_per_step", "elementwise_to_attention", "free_positions_per_block",
    "masked_logits_per_molecule", "masking_launches", "junk_tokens", "busy_ratio", "syncs_per_step", "valid_molecules",
)  # fmt: skip
# Of every capture, a column each.
OVERVIEW = (
    "ns_per_molecule", "ns_per_token", "launches_per_step", "graph_launches_per_step", "gpu_ns_per_step", "busy_ratio",
    "processor_ns", "masking_syncs", "valid_molecules",
)  # fmt: skip
# Pictures that docs/pictures.py writes as docs/images/PREFIX-NAME.png.
PICTURES = {
    "waterfall": "From the time without a logits processor to that with one, part by part",
    "step": "A decode step in the Perfetto UI",
}


@dataclass(frozen=True)
class Machine:
    """What the page says of one GPU."""

    study: Study
    pictures: Mapping[str, str]  # caption by path from docs/

    @property
    def title(self) -> str:
        report = next(iter(self.study.reports.values()))
        return f"{self.study.prefix}: {report.run.setup.gpu or 'no GPU' if report.run is not None else NOT_RECORDED}"

    @property
    def compared(self) -> str:
        """The table of the original question, of the runs that are there."""
        names = [name for name in COMPARED if name in self.study.reports]
        return self.study.figures(names, FIGURES) if names else f"Not recorded: {', '.join(COMPARED)}."

    @property
    def overview(self) -> str:
        """Some figures of every capture."""
        names = list(self.study.reports)
        labels = [self.study.label(row) for row in OVERVIEW]
        body = [(f"`{name}`", *(self.study.value(name, row) for row in OVERVIEW)) for name in names]
        return table(("capture", *labels), body)

    @property
    def predictions(self) -> str:
        """What was expected of LLaMA against Qwen before anything was measured, and what came out."""
        if missing := [f"`{name}`" for name in EXAMPLE if name not in self.study.reports]:
            return f"Not settled, would need {', '.join(missing)}."
        found = self.study.compared(*EXAMPLE).predictions
        return table(
            ("LLaMA against Qwen, both with `generic`", "ratio", "verdict"),
            [(item.text, NOT_RECORDED if item.ratio is None else f"{item.ratio:.3g}x", item.verdict) for item in found],
            "---",
        )

    def answers(self, question: Question) -> list[str]:
        return list(question.answers(self.study))


class Captured(msgspec.Struct):
    """A trace without its events, which are passed over."""

    molprof: dict[str, Any]


def case_study(root: Path = ROOT, rehearsal: bool = False) -> str:
    """docs/case-study.md."""
    study = read_study(root, CPU)
    machines = []
    for prefix in prefixes(root):
        paths = {f"images/{prefix}-{name}.png": caption for name, caption in PICTURES.items()}
        there = {path: caption for path, caption in paths.items() if (root / "docs" / path).exists()}
        machines.append(Machine(read_study(root, prefix, rehearsal), there))
    return rendered(
        root / "docs" / "case-study.md.jinja", study=study, run=study.run, time=time_text, number=number_text,
        percent=percent_text, prefix=CPU, machines=machines, questions=QUESTIONS,
        rehearsal=REHEARSAL if rehearsal and machines else None,
    )  # fmt: skip


def comparing(root: Path = ROOT, rehearsal: bool = False) -> str:
    """docs/comparing.md with what `molprof compare` prints of the two runs of its example, which a CPU recorded."""
    paths = [root / "traces" / f"{CPU}-{name}.json.gz" for name in EXAMPLE]
    reports = [
        replace(report, trace=replace(report.trace, path=f"traces/{path.name}"))
        for path, report in zip(paths, api.reports(paths, cached=True), strict=True)
    ]
    shown = render(comparison_document(compare(reports)), whole=False).strip("\n")
    before, rest = (root / "docs" / "comparing.md").read_text(encoding="utf-8").split(BEGIN)
    return f"{before}{BEGIN}\n```text\n{shown}\n```\n{END}{rest.split(END)[1]}"


def trace_list(root: Path = ROOT, rehearsal: bool = False) -> str:
    """traces/README.md."""
    body = []
    machines = {}
    for path in sorted((root / "traces").glob("*.json.gz")):
        manifest = msgspec.json.decode(gzip.decompress(path.read_bytes()), type=Captured).molprof
        # Without the folders of paths.
        command = shlex.join(Path(word).name if word.startswith("/") else word for word in manifest["command"])
        body.append((path.name, f"{path.stat().st_size / 1000:,.0f} kB", f"`{command}`"))
        where = manifest["environment"]
        machine = (
            f"{where['gpu'] or where['cpu']}, {counted(where['cores'], 'core')}, "
            f"{counted(where['threads'], 'thread')}; torch {where['torch']}, "
            f"transformers {where['transformers']}, Python {where['python']}, molprof {where['molprof']}"
        )
        machines[machine, manifest["created"][:10]] = None
    return rendered(
        root / "traces" / "README.md.jinja", machines=list(machines),
        table=table(("trace", "size", "command"), body, "---"),
        rehearsal=REHEARSAL if rehearsal and prefixes(root) else None,
    )  # fmt: skip


# Each page, from a copy of the project and whether runs that no GPU made may stand for those of a GPU.
PAGES: dict[str, Callable[[Path, bool], str]] = {
    "docs/case-study.md": case_study,
    "docs/comparing.md": comparing,
    "traces/README.md": trace_list,
}


def pages(root: Path = ROOT, rehearsal: bool = False) -> dict[Path, str]:
    """Every page of the project at `root`. Raises TraceError for runs that are no evidence, unless `rehearsal`."""
    return {root / name: page(root, rehearsal) for name, page in PAGES.items()}


def write_pages(root: Path = ROOT, rehearsal: bool = False) -> None:
    for path, text in pages(root, rehearsal).items():
        with replacing(path) as part:
            part.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_pages()
