"""The case study on a GPU, rehearsed with captures of a simulated one: answers, or what they would need."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import case_study
import gpu_study
import pictures
import pytest
from questions import QUESTIONS, Question
from study import Study, read_study

from molprof.common.errors import TraceError

NAMES = (
    "llama", "llama-generic", "qwen", "qwen-generic", "qwen-grammar", "qwen-jump", "qwen-static", "qwen-static-generic",
)  # fmt: skip
STATIC, GRAPHS, KERNELS, GAP, QUALITY, FASTEST = QUESTIONS


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = gpu_study.project(tmp_path_factory.mktemp("project"))
    gpu_study.add_runs(folder, NAMES)
    gpu_study.add_results(folder)
    return folder


@pytest.fixture(scope="module")
def study(root: Path) -> Study:
    return read_study(root, gpu_study.PREFIX, rehearsal=True)


def answers(question: Question, study: Study) -> dict[str, str]:
    """By model; by the empty text if it is asked of all together."""
    return dict(zip(question.models, question.answers(study), strict=True))


def test_a_simulated_gpu_is_no_evidence(root: Path) -> None:
    with pytest.raises(TraceError, match=r"sim-qwen.json.gz was recorded on: simulated GPU \(no device\)"):
        read_study(root, gpu_study.PREFIX, only={"qwen"})
    with pytest.raises(TraceError, match="simulated"):
        pictures.write_pictures(root)


def test_a_run_without_a_gpu_is_no_evidence_for_one(root: Path, tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "h100-qwen.json.gz").write_bytes((root / "traces" / "cpu-qwen.json.gz").read_bytes())
    with pytest.raises(TraceError, match="recorded without a GPU"):
        read_study(tmp_path, "h100")


def test_the_pages_of_a_rehearsal(root: Path) -> None:
    (root / "docs" / "images" / "sim-step.png").write_bytes(b"")
    made = case_study.pages(root, rehearsal=True)
    page = made[root / "docs" / "case-study.md"]
    assert case_study.REHEARSAL in page.split("## ")[0]
    assert case_study.REHEARSAL in made[root / "traces" / "README.md"]
    assert all(f"**{question.text}**" in page for question in QUESTIONS)
    assert "### sim: simulated GPU (no device)" in page
    assert "(images/sim-step.png)" in page
    assert "sim-waterfall" not in page
    assert all(f"| `{name}` |" in page for name in NAMES)
    assert "Not recorded on a GPU yet" not in page
    assert all(len(line) < 1_500 for line in page.splitlines())


def test_answers(study: Study) -> None:
    found = answers(STATIC, study)
    assert found["llama"] == "LLaMA: not settled, would need `llama-static`."
    assert found["qwen"].startswith("Qwen: **Both scripts can be right: the static cache is faster warm, and slower")
    assert "the timed passes compiled 0 frames" in found["qwen"]
    assert answers(GRAPHS, study)["qwen"].startswith(
        "Qwen: **No, the LP does not break CUDA graphs**: graph launches per step: 1 without and 1 with it; other "
        "launches of the forward: 9 and 9;"
    )
    kernels = answers(KERNELS, study)[""]
    assert 'Flash-only SDPA: failed ("RuntimeError: No available kernel. Aborting execution.")' in kernels
    assert "cuDNN-only SDPA: timed out, in `cudnn_attention`" in kernels
    assert kernels.endswith(
        "**A padding mask is the reason for flash**: its kernel runs without one, and never with one."
    )
    attention = replace(study, results={"attention": study.results["attention"]})
    assert "would need `sdpa.jsonl`" in answers(KERNELS, attention)[""]
    assert answers(GAP, study)[""].startswith("**Most of it is finer tokens** (")
    assert answers(QUALITY, study)["qwen"].startswith("Qwen: **The fixed number of positions costs validity")
    fastest = answers(FASTEST, study)
    assert fastest["llama"].startswith("LLaMA: **`llama`**")
    assert fastest["qwen"].startswith("Qwen: **`qwen-static`**")
    assert "Of 2 configurations of `molprof bench`: qwen no LP" in fastest["qwen"]


def test_the_verdict_follows_the_figures(study: Study) -> None:
    """The same questions of runs whose figures say otherwise."""

    def swapped(**names: str) -> Study:
        taken = {name.replace("_", "-"): study.reports[other] for name, other in names.items()}
        return replace(study, reports={**study.reports, **taken})

    slower = answers(STATIC, swapped(qwen="qwen-static", qwen_static="qwen"))["qwen"]
    assert slower.startswith("Qwen: **The static cache is slower even warm")
    without = answers(GRAPHS, swapped(qwen_static="qwen"))["qwen"]
    assert without.startswith("Qwen: **No graphs are in use even without the LP**")
    broken = answers(GRAPHS, swapped(qwen_static_generic="qwen-generic"))["qwen"]
    assert broken.startswith("Qwen: **Yes, with the LP no graph is in use**")
    assert answers(GAP, swapped(llama_generic="qwen-generic"))[""].startswith("**There is no gap**")
    assert answers(QUALITY, swapped(qwen_generic="qwen-grammar"))["qwen"].startswith("Qwen: **It did not fall")


def test_any_runs_may_be_missing(study: Study) -> None:
    names = list(study.reports)
    kept = [(), *combinations(names, 1), *combinations(names, 2), *combinations(names, len(names) - 1)]
    for some in kept:
        part = replace(study, reports={name: study.reports[name] for name in some}, results={})
        machine = case_study.Machine(part, {})
        assert machine.compared
        assert machine.predictions
        for question in QUESTIONS:
            assert len(machine.answers(question)) == len(question.models)
