"""Figures: what they say, that they are the same each time, safe in a page, and refused where there is no data."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest
import tiny_trace
from conftest import Cli
from msgspec.structs import replace
from page_data import HOSTILE, PARTS, foreign, hostile_document, report_of, timed, two_runs

from molprof.analysis.compare import Comparison
from molprof.analysis.compare.parts import RECORDED_LABELS
from molprof.analysis.documents.figures import reports_of
from molprof.analysis.documents.plots import PLOTS, NotRecordedError, draw, plot_file, plot_svg, style
from molprof.analysis.documents.plots.style import house_style
from molprof.analysis.figures import Report
from molprof.analysis.figures.model import Interval
from molprof.queries import modules

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# What style attributes, scripts, references to other files and event handlers look like.
UNSAFE = re.compile(
    r"style=|<style|<script|\bon[a-z]+=|href=\"(?!#)|url\((?!#)|<image|<foreignObject|<!", re.IGNORECASE
)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """LLaMA against Qwen, drawn many times."""
    return two_runs(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """A run with hostile text in every name."""
    return report_of(tmp_path_factory.mktemp("hostile"), hostile_document(" ".join(HOSTILE)))


@pytest.fixture
def styled() -> Iterator[None]:
    with house_style():
        yield


def texts(figure: Figure) -> list[str]:
    """All text of a figure, in order of drawing."""
    from matplotlib.text import Text

    figure.draw_without_rendering()
    return [found.get_text() for found in figure.findobj(Text) if found.get_text()]


@pytest.mark.parametrize("kind", PLOTS)
def test_svg_is_safe_and_the_same_each_time(pair: Comparison, kind: str) -> None:
    subject = reports_of(pair)
    svg = plot_svg(kind, subject)
    assert svg == plot_svg(kind, subject)
    assert not UNSAFE.search(svg)
    root = ElementTree.fromstring(svg)
    assert (root.tag, root.get("role"), root.get("width")) == ("svg", "img", None)
    names = re.findall(r'\bid="([^"]+)"', svg)
    assert len(names) == len(set(names))
    assert all(name.startswith(f"{kind}-") for name in names)
    # What is referred to is there, so that no clipping path and no hatch is lost.
    assert set(re.findall(r"#([\w-]+)[\")]", re.sub(r'="#[0-9a-f]{6}"', "", svg))) == set(names)


@pytest.mark.parametrize("kind", PLOTS)
def test_names_from_a_trace_cannot_leave_their_text(hostile: Report, kind: str) -> None:
    both = reports_of([hostile, hostile])
    svg = plot_svg(kind, both)
    assert not UNSAFE.search(re.sub(r"<text[^>]*>[^<]*</text>", "", svg))
    assert {element.tag for element in ElementTree.fromstring(svg).iter()} <= {
        "svg", "g", "defs", "path", "rect", "use", "text", "tspan", "clipPath", "pattern",
    }  # fmt: skip


@pytest.mark.parametrize(("form", "start"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_files_are_what_their_ending_says_and_the_same_each_time(pair: Comparison, form: str, start: bytes) -> None:
    subject = reports_of(pair)
    data = plot_file("waterfall", subject, form)
    assert data.startswith(start)
    assert data == plot_file("waterfall", subject, form)


def test_the_users_own_settings_change_nothing(pair: Comparison) -> None:
    import matplotlib

    subject = reports_of(pair)
    before = plot_svg("phases", subject)
    with matplotlib.rc_context({"font.size": 30, "svg.fonttype": "path", "axes.facecolor": "red"}):
        assert plot_svg("phases", subject) == before
        assert matplotlib.rcParams["font.size"] == 30


@pytest.mark.usefixtures("styled")
def test_waterfall_names_every_part_that_can_be_seen_and_adds_up(pair: Comparison) -> None:
    figure = draw("waterfall", reports_of(pair))
    shown = texts(figure)
    (axis,) = figure.axes
    assert axis.get_title(loc="left") == "qwen lp:generic against llama lp:generic: +1.38 s"
    assert [label.get_text() for label in axis.get_yticklabels()] == [
        "llama lp:generic", "building templates", "useful tokens", "junk tokens", "steps on finished rows",
        "forward: GPU busy", "forward: launch-bound (GPU idle)", "processor: host sync (GPU idle)", "a smaller part",
        "qwen lp:generic",
    ]  # fmt: skip
    for text in ("4.00 s", "+900 ms (+22.5 %)", "-30.0 ms (-0.75 %)", "+1.00 ms (+0.03 %)", "5.38 s"):
        assert text in shown
    lengths = [bar.get_width() for bar in axis.patches[: len(PARTS)]]
    assert lengths == pytest.approx([0.02, 0.9, 0.06, 0.03, 0.1, 0.25, 0.079, 0.001])
    ends = axis.patches[len(PARTS) - 1]
    assert ends.get_x() + ends.get_width() == pytest.approx(5.38)


@pytest.mark.usefixtures("styled")
def test_waterfall_shows_what_no_part_accounts_for_and_cuts_the_axis(tmp_path: Path) -> None:
    figure = draw("waterfall", reports_of(two_runs(tmp_path, {"forward": 1_370_000_000})))
    (axis,) = figure.axes
    labels = [label.get_text() for label in axis.get_yticklabels()]
    assert labels == ["llama lp:generic", "forward", "unexplained", "qwen lp:generic"]
    assert "+10.0 ms (+0.25 %)" in texts(figure)
    assert axis.get_xlim()[0] > 0
    assert "does not begin at 0" in axis.get_xlabel()


@pytest.mark.usefixtures("styled")
def test_waterfall_of_traces_without_unprofiled_times_is_of_recorded_time(tmp_path: Path) -> None:
    longer = {"traceEvents": [tiny_trace.work("kernel", "gemm", 5, 7, 1), tiny_trace.work("kernel", "gemm", 20, 2, 2)]}
    figure = draw("waterfall", reports_of([foreign(tmp_path), report_of(tmp_path, longer, "longer")]))
    (axis,) = figure.axes
    assert axis.get_title(loc="left") == "longer against foreign: +12.0 µs"
    assert axis.get_xlabel() == "recorded time of the GPUs, profiled (µs)"
    assert {"5.00 µs", "GPU busy", "+6.00 µs (+120 %)", "17.0 µs"} <= set(texts(figure))


def test_waterfall_has_a_name_for_every_cause_of_idle_time() -> None:
    names = {f"idle.{name}" for name in re.findall(r'^-- (\w+) \("', modules()["molprof.idle_causes"], re.MULTILINE)}
    assert names == set(RECORDED_LABELS) - {"busy"}


@pytest.mark.usefixtures("styled")
@pytest.mark.parametrize("kind", PLOTS)
def test_no_label_is_clipped(tmp_path: Path, pair: Comparison, kind: str) -> None:
    content = tiny_trace.document()
    content["molprof"]["model"]["name"] = "a-model-whose-name-is-much-longer-than-any-that-fits-beside-a-bar"
    long = timed(report_of(tmp_path, content), 4_100_000_000, 0)
    subject = reports_of([pair.runs[0], long, long])
    figure = draw(kind, subject)
    figure.draw_without_rendering()
    box = figure.get_tightbbox()
    assert box.x0 >= -0.02
    assert box.y0 >= -0.02
    assert box.x1 <= figure.get_figwidth() + 0.02
    assert box.y1 <= figure.get_figheight() + 0.02


@pytest.mark.usefixtures("styled")
def test_timeline_has_a_lane_for_each_stream_and_says_what_is_put_together(tmp_path: Path) -> None:
    report = report_of(tmp_path, tiny_trace.document())
    figure = draw("timeline", reports_of(report))
    (axis,) = figure.axes
    assert [label.get_text() for label in axis.get_yticklabels()] == [
        "phases", "launches", "GPU 0 stream 7", "GPU 0 stream 8",
    ]  # fmt: skip
    assert axis.get_title(loc="left") == "llama lp:generic: decode step of 80.0 µs (median of 2)"
    assert axis.get_xlabel() == "time since the step began, profiled (µs)"
    assert {"end of step (host)", "copy", "cat", "other", "of another step"} <= set(texts(figure))
    assert report.typical_step is not None
    several = (Interval("launch", None, "cudaLaunchKernel", None, 0, 10, 7, True), *report.typical_step.intervals)
    merged = replace(report, typical_step=replace(report.typical_step, intervals=several))
    (axis,) = draw("timeline", reports_of(merged)).axes
    assert axis.get_xlabel().endswith("; what is shorter than 160 ns is drawn together")


@pytest.mark.usefixtures("styled")
def test_other_figures_say_their_figures_with_units(pair: Comparison) -> None:
    subject = reports_of(pair)
    phases = draw("phases", subject)
    assert phases.axes[0].get_xlabel() == "unprofiled time per step (s)"
    assert {"forward", "processor", "sampling", "bookkeeping", "llama lp:generic"} <= set(texts(phases))
    classes = draw("classes", subject)
    assert classes.axes[0].get_xlabel() == "GPU time per recorded step, profiled (µs)"
    assert {"20.0 µs (56.3 %), 0.5x", "matmul", "memcpy DtoH"} <= set(texts(classes))
    latency = draw("latency", subject)
    assert latency.axes[0].get_ylabel() == "unprofiled step time (ms)"
    assert [len(line.get_xdata()) for line in latency.axes[0].get_lines()] == [59, 59]
    drift = draw("drift", subject)
    assert drift.axes[0].get_ylabel() == "share of the blocks (%)"
    assert "llama lp:generic: 1 blocks" not in texts(drift)
    assert "llama lp:generic: 1 block, 1 with drift" in texts(drift)


def test_kernel_classes_of_a_foreign_trace_are_of_the_whole_trace(tmp_path: Path) -> None:
    with house_style():
        figure = draw("classes", reports_of(foreign(tmp_path)))
    assert figure.axes[0].get_xlabel() == "GPU time in the trace, profiled (µs)"
    assert {"matmul", "attention", "2.00 µs (66.7 %), 1x"} <= set(texts(figure))


def empty(folder: Path) -> Report:
    return report_of(folder, {"traceEvents": [tiny_trace.slice_("cpu_op", "aten::mm", 1, 2)]})


@pytest.mark.parametrize("kind", PLOTS)
def test_what_is_not_recorded_is_not_drawn(tmp_path: Path, kind: str) -> None:
    with pytest.raises(NotRecordedError, match=r"^not recorded: [a-z]"):
        plot_svg(kind, reports_of(empty(tmp_path)))


def test_a_run_without_repeats_has_no_latency_and_no_waterfall(tmp_path: Path) -> None:
    content = tiny_trace.cpu_document()
    content["molprof"]["timings"]["repeats"] = []
    report = report_of(tmp_path, content)
    for kind in ("latency", "waterfall", "phases"):
        with pytest.raises(NotRecordedError):
            plot_svg(kind, reports_of([report, report]))


def test_dark_mode_knows_every_colour_that_is_made_for_white_paper() -> None:
    sheet = (Path(__file__).parent.parent / "analysis/render/page/page.css").read_text()
    dark = sheet.split("prefers-color-scheme: dark", 1)[1]
    for name in ("INK", "MUTED", "GRID", "DARK"):
        assert f'stroke="{getattr(style, name)}"' in dark, name


def write(folder: Path, name: str, content: dict[str, object]) -> str:
    return str(tiny_trace.write(folder / name, content))


def test_plot_writes_a_file_and_does_not_overwrite_it(molprof: Cli, tmp_path: Path) -> None:
    trace = write(tmp_path, "run.json", tiny_trace.document())
    result = molprof("plot", "drift", trace, "-o", "out.SVG")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "wrote out.SVG\n")
    assert (tmp_path / "out.SVG").read_bytes().startswith(b"<?xml")
    again = molprof("plot", "drift", trace, "-o", "out.SVG")
    assert again.returncode == 2
    assert "out.SVG already exists" in again.stderr


def test_figures_and_templates_are_imported_only_where_they_are_made(tmp_path: Path) -> None:
    write(tmp_path, "run.json", tiny_trace.document())
    lines = (["--help"], ["plot", "--help"], ["report", "run.json"], ["report", "run.json", "--format", "markdown"])
    code = (
        "import sys\n"
        "from molprof.cli import cli\n"
        f"for line in {lines!r}:\n"
        "    cli.main(line, standalone_mode=False)\n"
        "print(sorted({'matplotlib', 'jinja2', 'torch'} & set(sys.modules)), file=sys.stderr)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert result.stderr.splitlines()[-1] == "[]"
