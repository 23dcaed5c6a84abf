"""A new user's first steps work: a script next to molprof's folders, options behind a script, objects at a prompt."""

from __future__ import annotations

import configparser
import copy
import logging
import pickle
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from conftest import TIMEOUT_S
from goldens import called

import molprof
from molprof import api
from molprof.analysis.figures.catalog import METRICS
from molprof.analysis.origin.counted import places_of_counted

ROOT = Path(__file__).parent.parent
GIVEN = ROOT / "tests" / "goldens" / "given"
SCRIPT = """
import molprof, molprof.analysis.trace, molprof.profiler, molprof.queries
print(molprof.__file__, molprof.analysis.__file__, molprof.load("t.json").report.counts.launches)
"""


def installed(folder: Path) -> Path:
    """The folders of the package as an installation lays them."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    for line in setup["options"]["package_dir"].strip().splitlines():
        name, _, source = line.partition(" = ")
        place = folder.joinpath(*name.strip().split("."))
        shutil.copytree(ROOT / source, place, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.mark.parametrize("how", ["installed", "editable", "neither"])
def test_a_script_at_the_root_of_a_checkout(tmp_path: Path, how: str) -> None:
    """There the folder `molprof` comes before the installed package; elsewhere the installed one is found."""
    root = tmp_path / "checkout"
    root.mkdir()
    for name in ("analysis", "molprof", "profiler", "queries"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "setup.cfg", root)
    packages = [path for path in sys.path if path.endswith("-packages")]
    if how == "installed":
        packages.insert(0, str(installed(tmp_path / "site")))
    before = f"import sys; sys.path += {packages!r}\n" if how != "editable" else ""
    flags = [] if how == "editable" else ["-S"]  # which leaves out this environment's own editable installation
    for place, found in ((root, root / "molprof"), (tmp_path, {"installed": tmp_path / "site/molprof"}.get(how))):
        (place / "script.py").write_text(before + SCRIPT)
        shutil.copy(GIVEN / "tiny.json", place / "t.json")
        if found is not None:
            line = [sys.executable, *flags, "script.py"]
            seen = subprocess.run(line, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, cwd=place)
            assert seen.stderr == ""
            package, analysis, launches = seen.stdout.split()
            assert (Path(package).parent, int(launches) > 0) == (found, True)
            assert Path(analysis).parent == (root / "analysis" if found == root / "molprof" else found / "analysis")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["-o", "x.json", "--lr", "3"], "-o x.json"),
        (["--window=0:9", "--full", "in.txt"], "--window=0:9 --full"),
        (["in.txt", "--call"], "--call"),
        (["in.txt", "--seed", "3", "--help"], None),
    ],
)
def test_options_behind_a_script_are_told_to_be_its_own(tmp_path: Path, arguments: list[str], told: str | None) -> None:
    (tmp_path / "mine.py").write_text("import sys; print(sys.argv[1:])")
    line = [sys.executable, "-m", "molprof", "run", "mine.py", *arguments]
    seen = subprocess.run(line, capture_output=True, text=True, timeout=TIMEOUT_S, check=True, cwd=tmp_path)
    assert seen.stdout == f"{arguments}\n"
    said = f"molprof: options of molprof come before the script; {told} was given to mine.py"
    assert [line for line in seen.stderr.splitlines() if "come before" in line] == ([] if told is None else [said])


def test_a_recording_without_steps_lets_the_program_go_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with molprof.record(tmp_path / "window.json", window="auto") as recording:
        torch.ones(3).add_(1)
    assert (recording.path, [*tmp_path.iterdir()]) == (None, [])
    (told,) = caplog.messages
    assert told.startswith("no call of transformers' generate returned, and molprof.step() was not called: ")
    assert "put `with molprof.step():` around each step of a loop of your own" in told
    caplog.clear()
    with molprof.record(tmp_path / "all.json") as recording:
        torch.ones(3).add_(1)
    assert recording.path == tmp_path / "all.json"
    assert recording.notes == ["no steps are marked: put `with molprof.step():` around each step of a loop of your own"]
    assert [item for item in caplog.records if item.levelno >= logging.WARNING] == []


def test_an_error_at_a_prompt_has_its_hint(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("mine")
    with pytest.raises(Exception, match="already exists") as caught, molprof.record(tmp_path / "run.json"):
        pass
    assert any("force=True" in line for line in caught.value.__notes__)


@pytest.mark.parametrize("name", ["gpu-eager.json.gz", "gpu-graph.json.gz"])
def test_the_places_of_a_figure_add_up_to_it(name: str) -> None:
    with api.load(GIVEN / name, cached=False) as trace:
        report = trace.report
        assert report.run is not None
        for figure in METRICS.values():
            value, counted = figure.value(report), figure.counted
            if counted is None or figure.group == "Unprofiled time" or value is None or figure.total is not None:
                continue
            is_time = figure.unit == "ns"
            ask = partial(places_of_counted, counted=counted, by_time=is_time, has_gpu=True)
            places, _ = trace.read(lambda engine, _, ask=ask: ask(engine), stacks=True)
            amounts = [place.time_ns if is_time else place.count for place in places]
            assert amounts == sorted(amounts, reverse=True)
            divisor = {"token": report.run.window.tokens, "step": report.run.window.steps}.get(
                "step" if counted.phase else figure.id.rpartition("_per_")[2], 1
            )
            if not figure.id.endswith("_per_molecule") and figure.id != "elementwise_to_attention":
                assert sum(amounts) / divisor == pytest.approx(value), figure.id


def test_results_at_a_prompt(tmp_path: Path) -> None:
    path = tmp_path / "t.json.gz"
    shutil.copy(GIVEN / "gpu-eager.json.gz", path)
    with api.load(path, cached=False) as trace:
        assert repr(trace).startswith(f"<Trace {path}: report, figures, findings, ")
        assert {"kernels", "tokens", "report", "sql"} <= {*dir(trace)}
        assert repr(trace.report).startswith(f"molprof report: {path}"[:100])
        assert "\nFindings" in repr(trace.report)
        assert repr(trace.findings).splitlines() == [f"<Finding {one.id}: {one.headline}>" for one in trace.findings]
        first = trace.findings[0]
        assert [line.split()[0] for line in str(first).splitlines()[1:] if line[2] != " "][-1] == "more"
        assert first.evidence[:20] in str(first)
        assert "<th>fix</th>" in first._repr_html_()
        assert repr(api.compare(trace, trace)).startswith("molprof compare: ")
        kernels = trace.kernels
        head, *rows, foot = repr(kernels.select("id", "dur", "name", "class")).splitlines()
        assert head.split() == ["id", "dur", "(ns)", "name", "class"]
        assert (len(rows), foot) == (10, "[2,085 rows x 4 columns]")
        assert len({line.index(str(kernels["name"][place])[:20]) for place, line in enumerate(rows)}) == 1
        assert all(len(line) <= 100 for line in repr(kernels).splitlines())
        assert "; more columns: " in repr(kernels)
        assert (kernels.dur is kernels["dur"], "step_id" in dir(kernels)) == (True, True)
        assert kernels._ipython_key_completions_() == list(kernels.names)
        assert pickle.loads(pickle.dumps(kernels)).names == copy.copy(kernels).names == kernels.names
        with pytest.raises(AttributeError, match="no column or attribute 'times'; columns: id, ts"):
            kernels.times  # noqa: B018
        assert "[0 rows x " in repr(kernels.where(kernels.dur < 0))


def test_a_comparison_of_a_file_that_is_not_there(tmp_path: Path) -> None:
    code, _, told = called(["compare", "nothere"], tmp_path)
    assert (code, told.splitlines()[0]) == (2, "molprof: error: cannot read nothere: No such file or directory")
