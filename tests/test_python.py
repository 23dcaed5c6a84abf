"""molprof in Python, notebooks and tests: frames for other libraries, trees, figures of many traces, limits."""

from __future__ import annotations

import html
import os
from pathlib import Path

import pyarrow
import pytest
import tiny_trace
from conftest import Cli
from forks import forked
from msgspec import json

import molprof
from molprof import api
from molprof.common.errors import UsageError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tiny_trace.write(tmp_path / "a<b>.json", tiny_trace.document())


def test_what_is_not_there_is_said() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        molprof.nothing  # type: ignore[attr-defined]  # noqa: B018
    assert set(molprof.__all__) <= set(dir(molprof))


def test_a_tree_is_that_of_the_command(path: Path, molprof: Cli) -> None:
    done = molprof("report", "by", "operator", path.name, "--format", "csv")
    head, *lines = done.stdout.splitlines()
    with api.load(path, cached=False) as trace:
        tree = trace.origin("operator")
        assert [line.split(",")[0] for line in lines] == tree["path"].tolist()
        column = head.split(",").index("gpu_ns")
        assert [int(line.split(",")[column]) for line in lines] == tree["gpu_ns"].tolist()
        assert trace.origin("operator", depth=0)["kernels"].tolist() == [len(trace.kernels)]
        with pytest.raises(UsageError, match="no by 'name'"):
            trace.origin("name")


def test_frames_go_to_whatever_reads_arrow(path: Path) -> None:
    with api.load(path, cached=False) as trace:
        table = pyarrow.table(trace.kernels)
        assert table["name"].to_pylist() == trace.kernels["name"].tolist()
        assert table.column_names == list(trace.work.names)
        for name in ("pandas", "polars"):
            try:
                __import__(name)
            except ImportError:
                with pytest.raises(UsageError, match=f"to_{name} needs the package '{name}'"):
                    getattr(trace.steps, f"to_{name}")()
            else:
                assert len(getattr(trace.steps, f"to_{name}")()) == len(trace.steps)


def test_figures_of_many_traces(path: Path, molprof: Cli) -> None:
    (path.parent / "b.json").write_text("[")
    found = api.read_many(path.parent, cached=False)
    assert found["path"].tolist() == [str(path), str(path.parent / "b.json")]
    assert [problem is None for problem in found["problem"]] == [True, False]
    with api.load(path, cached=False) as trace:
        assert {name: found[name].tolist()[0] for name in trace.figures} == trace.figures
    (empty := path.parent / "empty").mkdir()
    with pytest.raises(UsageError, match="holds no traces"):
        api.read_many(empty)


def test_a_notebook_shows_the_page_of_the_command(path: Path, molprof: Cli) -> None:
    page = molprof("report", path.name, "--format", "html").stdout
    with api.load(path, cached=False) as trace:
        shown = html.unescape(str(trace._repr_html_()))
        assert "a<b>" not in shown
        assert shown.count("<h2") == page.count("<h2") > 3
        assert "a&lt;b&gt;" in shown
        assert trace.steps._repr_html_().count("<tr>") == len(trace.steps) + 1
    assert "<h2" in html.unescape(str(api.compare(path, path)._repr_html_()))


TESTS = """
import pytest, torch
import molprof as m

def run():
    for _ in range(2):
        with m.step():
            torch.ones(3) + 1

@pytest.mark.molprof(leaf_operators_per_step="<=400")
def test_holds():
    run()

@pytest.mark.molprof(leaf_operators_per_step="<=3", host_syncs="==0")
def test_does_not():
    run()

@pytest.mark.molprof(launches_per_step="few")
def test_is_no_limit():
    run()

def test_by_hand(molprof):
    with molprof.record() as measured:
        run()
    assert measured.trace.figures["leaf_operators_per_step"] > 3
    molprof.check(measured, leaf_operators_per_step=">=4")
    molprof.check(measured, leaf_operators_per_step="<4")
"""


def test_a_test_is_held_to_limits(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(TESTS)
    shown = forked(pytest_in, tmp_path).splitlines()
    assert shown[-1].startswith("3 failed, 1 passed")
    assert any(line.startswith("leaf_operators_per_step (") and line.endswith(", not <=3") for line in shown)
    assert any("operators: aten::" in line for line in shown)
    assert "host_syncs (host syncs) is not recorded, so that ==0 cannot be judged" in shown
    assert "'few' is no limit of launches_per_step" in shown
    assert any(line.endswith(", not <4") for line in shown)
    assert not any("Traceback" in line for line in shown)


def pytest_in(folder: Path) -> None:
    """Pytest as in a process of its own: no plugin but molprof's."""
    os.chdir(folder)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    pytest.main(["-q", "-p", "molprof.testing", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", ".", "."])


def test_pytest_loads_it_by_itself(pytestconfig: pytest.Config) -> None:
    assert json.encode(pytestconfig.getini("markers")).find(b"molprof(FIGURE") > 0
