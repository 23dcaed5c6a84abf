"""Plots are safe in a page, reproducible, complete, add up, and are refused without data.

What they say of whole traces is in the pages in `tests/goldens`.
"""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import tiny_trace
from conftest import Cli
from page_data import HOSTILE, PARTS, hostile_document, report_of, timed, two_runs

from molprof.analysis.compare import Comparison
from molprof.analysis.compare.parts import RECORDED_LABELS
from molprof.analysis.documents.figures import reports_of
from molprof.analysis.documents.plots import PLOTS, NotRecordedError, draw, plot_file, plot_svg
from molprof.analysis.documents.plots.style import house_style
from molprof.queries import modules

# What scripts, references to other files and event handlers look like.
UNSAFE = re.compile(r"<script|\bon[a-z]+=|href=\"(?!#)|url\((?!#)|<image|<foreignObject|<!", re.IGNORECASE)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """LLaMA against Qwen, drawn many times."""
    return two_runs(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def drawn(pair: Comparison) -> dict[str, str]:
    """Each plot of the pair."""
    return {kind: plot_svg(kind, reports_of(pair)) for kind in PLOTS}


def ids(svg: str) -> list[str]:
    return re.findall(r'\bid="([^"]+)"', svg)


@pytest.mark.parametrize("kind", PLOTS)
def test_svg_is_safe_and_the_same_each_time(pair: Comparison, drawn: dict[str, str], kind: str, tmp_path: Path) -> None:
    import matplotlib

    svg = drawn[kind]
    with matplotlib.rc_context({"font.size": 30, "svg.fonttype": "path", "axes.facecolor": "red"}):  # the user's own
        assert plot_svg(kind, reports_of(pair)) == svg
    names = ids(svg)
    assert len(names) == len(set(names))
    # What is referred to is there, so that no clipping path and no hatch is lost.
    assert set(re.findall(r'(?:url\(|href=")#(\w+)', svg)) == set(names)
    # Nothing refers to another plot on the page.
    assert set(names).isdisjoint(name for other in drawn.keys() - {kind} for name in ids(drawn[other]))

    evil = report_of(tmp_path, hostile_document(" ".join(HOSTILE)))
    for text in (svg, plot_svg(kind, reports_of([evil, evil]))):
        assert not UNSAFE.search(re.sub(r"<text[^>]*>[^<]*</text>", "", text))
        root = ElementTree.fromstring(text)
        assert root.get("role") == "img"
        tags = {"svg", "g", "defs", "style", "path", "rect", "use", "text", "tspan", "clipPath", "pattern"}
        assert {element.tag.rpartition("}")[2] for element in root.iter()} <= tags


@pytest.mark.parametrize("kind", PLOTS)
def test_no_label_is_clipped(tmp_path: Path, pair: Comparison, kind: str) -> None:
    content = tiny_trace.document()
    content["molprof"]["model"]["name"] = "a-model-whose-name-is-much-longer-than-any-that-fits-beside-a-bar"
    long = timed(report_of(tmp_path, content), 4_100_000_000, 0)
    with house_style():
        figure = draw(kind, reports_of([pair.runs[0], long, long]))
        figure.draw_without_rendering()
        box = figure.get_tightbbox()
    assert min(box.x0, box.y0) >= -0.02
    assert box.x1 <= figure.get_figwidth() + 0.02
    assert box.y1 <= figure.get_figheight() + 0.02


@pytest.mark.parametrize(
    ("parts", "labels", "lengths", "starts_at_0"),
    [
        (PARTS, [
            "building templates", "useful tokens", "junk tokens", "steps on finished rows", "forward: GPU busy",
            "forward: launch-bound (GPU idle)", "processor: host sync (GPU idle)", "a smaller part",
        ], [0.02, 0.9, 0.06, 0.03, 0.1, 0.25, 0.079, 0.001], False),
        ({"forward": 1_370_000_000}, ["forward", "unexplained"], [1.37, 0.01], False),
        ({"forward": 6_000_000_000, "text": -4_620_000_000}, ["forward", "decoding text"], [6, 4.62], True),
    ],
)  # fmt: skip
def test_a_waterfall_adds_up(
    tmp_path: Path, parts: dict[str, int], labels: list[str], lengths: list[float], starts_at_0: bool
) -> None:
    with house_style():
        (axis,) = draw("waterfall", reports_of(two_runs(tmp_path, parts))).axes
    assert axis.get_title(loc="left") == "qwen lp:generic against llama lp:generic: +1.38 s"
    shown = [label.get_text() for label in axis.get_yticklabels()]
    assert shown == ["llama lp:generic", *labels, "qwen lp:generic"]
    bars = axis.patches[: len(lengths)]
    assert [bar.get_width() / 1e9 for bar in bars] == pytest.approx(lengths)
    assert 5_380_000_000 in (bars[-1].get_x(), bars[-1].get_x() + bars[-1].get_width())
    assert bool(axis.get_xlim()[0] <= 0) is starts_at_0 is ("does not begin at 0" not in axis.get_xlabel())


@pytest.mark.parametrize("kind", PLOTS)
def test_what_is_not_recorded_is_not_drawn(tmp_path: Path, kind: str) -> None:
    empty = report_of(tmp_path, {"traceEvents": [tiny_trace.slice_("cpu_op", "aten::mm", 1, 2)]})
    with pytest.raises(NotRecordedError, match=r"^not recorded: [a-z]"):
        plot_svg(kind, reports_of(empty))
    if kind in ("latency", "waterfall", "phases"):
        content = tiny_trace.cpu_document()
        content["molprof"]["timings"]["repeats"] = []
        report = report_of(tmp_path, content)
        with pytest.raises(NotRecordedError):
            plot_svg(kind, reports_of([report, report]))


def test_names_are_declared_for_all() -> None:
    names = {f"idle.{name}" for name in re.findall(r'^-- (\w+) \("', modules()["molprof.idle_causes"], re.MULTILINE)}
    assert names == set(RECORDED_LABELS) - {"busy", "outside"}


def test_a_file_is_what_its_ending_says(molprof: Cli, pair: Comparison, tmp_path: Path) -> None:
    for form, start in (("png", b"\x89PNG"), ("pdf", b"%PDF")):
        data = plot_file("waterfall", reports_of(pair), form)
        assert data.startswith(start)
        assert data == plot_file("waterfall", reports_of(pair), form)
    tiny_trace.write(tmp_path / "run.json", tiny_trace.document())
    result = molprof("report", "plot", "drift", "run.json", "-o", "out.SVG")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "wrote out.SVG\n")
    assert (tmp_path / "out.SVG").read_bytes().startswith(b"<?xml")
