"""Operators with any arguments give a program that is valid Python, or one line."""

from __future__ import annotations

import ast
import random
import runpy
import string
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny_trace
import torch
from click.testing import CliRunner
from forks import forked

from molprof.analysis.roofline.operands import Operand
from molprof.analysis.roofline.script import ScriptCall, script_of
from molprof.cli import cli
from molprof.common.errors import UsageError

TABLE, INDEX = Operand("float", (2, 3), (3, 1)), Operand("long int", (4,), (1,))


def called(operator: str, *operands: Operand) -> ScriptCall:
    return ScriptCall(operator, operands, 1, 1, 1, True)


def scalar(value: str) -> Operand:
    return Operand("Scalar", value=value)


def outline(script: str) -> str:
    """The program without what its texts and numbers are."""
    tree = ast.parse(script)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, (str, int, float)):
            node.value = ""
    return ast.dump(tree)


@pytest.mark.parametrize("operator", ["gather", "scatter", "scatter_", "index_select", "index_add_", "index_copy_"])
@pytest.mark.parametrize("dim", [None, "", "[0, 1]", "rows", "9" * 5000, "2", "-3", "٣", "0_0", "0.5", "9" * 19])
def test_rows_of_an_odd_dimension_are_one_line(operator: str, dim: str | None) -> None:
    operands = (TABLE,) if dim is None else (TABLE, scalar(dim), INDEX)
    with pytest.raises(UsageError, match=r"(?m)^aten::\w+ was called with .* as its dimension$") as problem:
        script_of(called(f"aten::{operator}", *operands), "of a test")
    assert len(str(problem.value)) < 200


@pytest.mark.parametrize(
    "value", ["٣", "1_000", "9" * 5000, str(1 << 64), "1e400", "0x10", "--1", "1e", "+", "1\n", "nan()"]
)
def test_what_torch_has_no_number_for_is_one_line(value: str) -> None:
    with pytest.raises(UsageError, match="which is no number") as problem:
        script_of(called("aten::mul", TABLE, scalar(value)), "of a test")
    assert len(str(problem.value)) < 200
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("007", "7"), ("-01", "-1"), ("+5", "5"), ("00.5", "0.5"), ("1e5", "100000.0"), ("01e-07", "1e-07"),
        ("[01, 2., -inf]", "[1, 2.0, float('-inf')]"), (str((1 << 64) - 1), str((1 << 64) - 1)), ("0" * 30 + "5", "5"),
        ("-9223372036854775808", "-9223372036854775808"), ("[]", "[]"), (".5", "0.5"),
    ],
)  # fmt: skip
def test_numbers_are_written_as_python_reads_them(value: str, written: str) -> None:
    script = script_of(called("aten::mul", TABLE, scalar(value)), "of a test")
    assert f"\n        {written},\n    ]" in script
    ast.parse(script)


def test_any_name_is_refused_or_a_text_of_the_program() -> None:
    """Names are the only text of a trace in it: one that could be anything else has no program."""
    plain = script_of(called("aten::mul", TABLE), "of a test")
    source = random.Random("names")
    letters = string.ascii_letters + string.digits + "_:.\"'\\{}()[] \n\r\t#;=éª٣\u2028\x00\ud800"
    names = [
        "import::x",
        "aten::class",
        "aten::__class__",
        "__class__::mro",
        "a::b\n",
        "a::b::c",
        "ª::b",
        "a::٣",
        "{x}::y",
    ]
    while len(names) < 10_000:
        parts = ("".join(source.choices(letters, k=source.randrange(6))) for _ in range(2))
        names.append(source.choice(("{}::{}", "{}{}", "aten::{}{}", "a{}::b{}")).format(*parts))
    accepted, refused = 0, []
    for name in names:
        try:
            script = script_of(called(name, TABLE), "of a test")
        except UsageError as problem:
            refused.append(str(problem))
            continue
        accepted += 1
        assert script == plain.replace("aten::mul", name)
        if accepted < 100:
            assert outline(script_of(called(name, TABLE), source.choice(names))) == outline(plain), name
    assert 100 < accepted < 9_000
    assert not any("\n" in line for line in refused)


def run_script(path: Path) -> None:
    sys.argv[1:] = ["--json"]
    try:
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as ended:
        sys.stdout.write(f"{ended}\n")


@pytest.mark.parametrize(
    ("operator", "operands", "problem"),
    [
        ("aten::__class__", (TABLE,), "aten::__class__ is not known here: import the library that has it"),
        ("import::x", (TABLE,), "import::x is not known here: import the library that has it"),
        ("__class__::mro", (TABLE,), "__class__::mro is not known here"),
        ("aten::relu", (Operand("float", (1 << 40,), (1,)),), "aten::relu cannot be made here: a tensor of 4,398,046,"),
        ("aten::relu", (Operand("float", (1 << 40, 4), (1 << 40, 1)),), "aten::relu cannot be made here: "),
        ("aten::mul", (TABLE, scalar("[1, 2]")), "aten::mul does not take these arguments here: "),
    ],
)
def test_what_cannot_be_called_ends_with_a_line(
    operator: str, operands: tuple[Operand, ...], problem: str, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(script_of(called(operator, *operands), "of a test"), encoding="utf-8")
    said = forked(run_script, script)
    assert problem in said
    assert said.count("\n") == 1


def test_operators_whose_names_are_words_of_python_run(tmp_path: Path) -> None:
    given: dict[str, Any] = {}
    script = script_of(called("aten::__and__", Operand("bool", (2,), (1,)), Operand("bool", (2,), (1,))), "of a test")
    exec(script.partition("\nwith torch.inference_mode()")[0], given)
    packet = getattr(torch.ops.aten, given["OPERATOR"].split("::")[1])
    call, plain, named = given["chosen"](packet, given["arguments"]())
    assert call(*plain, **named).dtype == torch.bool


@pytest.mark.parametrize("dims", [[[1 << 40, 1 << 40]], [[1 << 40, 1 << 20], [1 << 20, 1 << 40]]])
def test_shapes_that_no_call_had_have_no_figures(dims: list[list[int]], tmp_path: Path) -> None:
    shapes = {"Input Dims": dims, "Input type": ["float"] * len(dims)}
    call = tiny_trace.slice_("cuda_runtime", "cudaLaunchKernel", 1, 1, correlation=1)
    events = [tiny_trace.slice_("cpu_op", "aten::mm", 0, 5, **shapes), call, tiny_trace.work("kernel", "gemm", 2, 2, 1)]
    path = tiny_trace.write(tmp_path / "a.json", {"traceEvents": events})
    done = CliRunner().invoke(cli, ["report", "by", "shape", str(path), "--format", "json"])
    assert (done.exit_code, done.exception) == (0, None)
    assert '"flops": null' in done.stdout or "aten::mm" in done.stdout
