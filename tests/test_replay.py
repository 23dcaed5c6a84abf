"""Single operators of a trace are replayed with their arguments as recorded, as torch takes them."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny_trace
import torch
from click.testing import CliRunner
from forks import forked

from molprof import api
from molprof.analysis.roofline.operands import Operand
from molprof.analysis.roofline.script import ScriptCall, script_of
from molprof.cli import cli
from molprof.common.errors import MolprofError, UsageError


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Operators with an argument by name alone, a list of tensors, rows of a table, strides and a number."""
    table, index = torch.randn(9, 4), torch.tensor([8, 0, 3])
    with torch.profiler.profile(record_shapes=True) as profiler, torch.inference_mode():
        rows = torch.ops.aten.index_select(table, 0, index)
        torch.cat([rows, rows], dim=1)
        torch.sum(rows, dim=1, dtype=torch.float64)
        torch.addmm(torch.randn(5), rows, torch.randn(5, 4).t(), beta=0.5)
        rows.bfloat16().expand(2, 3, 4).mul(0.25)
    path = tmp_path_factory.mktemp("replay") / "trace.json"
    profiler.export_chrome_trace(str(path))
    return path


def test_scripts_call_what_was_recorded(trace: Path) -> None:
    found, _ = api.called_operators(trace)
    by_name = {called.operator: called for called in found}
    assert {"aten::index_select", "aten::cat", "aten::sum", "aten::addmm", "aten::mul"} <= set(by_name)
    scripts = [(name, script_of(called, "of a test")) for name, called in by_name.items()]
    results = {}
    for name, script in scripts:
        # All in one process: what measures is left out.
        defined, _, _ = script.partition("\nwith torch.inference_mode()")
        space: dict[str, Any] = {}
        exec(compile(defined, name, "exec"), space)
        namespace, plain_name = name.split("::")
        call, plain, named = space["chosen"](getattr(getattr(torch.ops, namespace), plain_name), space["arguments"]())
        results[name] = call(*plain, **named), plain
    assert results["aten::index_select"][1][0].shape == (9, 4)
    assert results["aten::cat"][0].shape == (3, 8)
    assert results["aten::sum"][0].dtype == torch.float64
    assert results["aten::addmm"][1][2].stride() == (1, 4)
    product, (wide, number, *_) = results["aten::mul"]
    assert (product.dtype, wide.stride(), number.shape) == (torch.bfloat16, (0, 4, 1), ())


def test_an_operator_is_timed_here(trace: Path, tmp_path: Path) -> None:
    listed = CliRunner().invoke(cli, ["replay", str(trace), "--format", "json"])
    number = next(row["op"] for row in json.loads(listed.stdout)["operators"] if row["operator"] == "aten::addmm")
    script = tmp_path / "addmm.py"
    written = CliRunner().invoke(cli, ["replay", str(trace), "--op", str(number), "--script", str(script)])
    assert (written.exit_code, written.stderr) == (0, f"wrote {script}\n")
    result = json.loads(forked(run_script, script))
    assert (result["operator"], result["overload"]) == ("aten::addmm", "aten.addmm.default")
    assert 0 < result["low_ns"] <= result["median_ns"] <= result["high_ns"]


def run_script(path: Path) -> None:
    sys.argv[1:] = ["--json"]
    runpy.run_path(str(path), run_name="__main__")


def test_a_size_that_no_tensor_has_counts_as_not_recorded(tmp_path: Path) -> None:
    shapes = {"Input Dims": [[2, -4]], "Input type": ["float"]}
    events = [tiny_trace.slice_("cpu_op", "aten::relu", 0, 5, **shapes), tiny_trace.work("kernel", "a", 1, 2, 1)]
    path = tiny_trace.write(tmp_path / "a.json", {"traceEvents": events})
    assert CliRunner().invoke(cli, ["report", "by", "shape", str(path)]).exit_code == 0
    with pytest.raises(MolprofError, match="records no shapes of operators"):
        api.called_operators(path)


@pytest.mark.parametrize(
    ("operator", "operand", "problem"),
    [
        ("aten::a\nimport os", Operand("float", (2,)), "is no operator that torch can be asked for"),
        ("aten::mul", Operand("Scalar", value="__import__('os')"), "which is no number"),
        ("aten::mul", Operand("Scalar"), "are not recorded"),
    ],
)
def test_nothing_of_a_trace_is_code(operator: str, operand: Operand, problem: str) -> None:
    given = (Operand("float", (2,), (1,)), operand)
    with pytest.raises(UsageError, match=problem):
        script_of(ScriptCall(operator, given, 1, 1, 1, True), "'''\"\"\"")
