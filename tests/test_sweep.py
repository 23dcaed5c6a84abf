"""Sweeps here: grid files, packaged grids, and folders of sweeps as input of other commands."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli
from tiny_trace import document, write

from molprof.common.bench_records import RESULTS, read_sweep
from molprof.common.errors import TraceError, UsageError
from molprof.common.process import Ending
from molprof.common.process.guarded import Limits
from molprof.common.settings import ATTENTION
from molprof.common.toml_file import read_toml
from molprof.profiler.bench.cases import LineCase
from molprof.profiler.bench.schedule import SchedulePlan, record_of, run_plan
from molprof.profiler.constraints import OF_MOLECULES
from molprof.profiler.jobs.grid import Option, grid_path, packaged, read_grid
from molprof.profiler.jobs.index import expanded
from molprof.profiler.jobs.results_file import ResultsFile

TRACES = Path(__file__).parent.parent / "traces"


# Grid files


KNOWN = {
    "model": Option(), "processor": Option(), "batch-size": Option(number=int), "n": Option(number=int),
    "full": Option(takes_value=False), "attention": Option(choices=ATTENTION), "generate-arg": Option(repeatable=True),
}  # fmt: skip


def test_a_list_of_many_values_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="n has 7 twice"):
        cases_of(tmp_path / "g.toml", f"[grid]\nn = [{', '.join(map(str, range(20_000)))}, 7]")
    with pytest.raises(UsageError, match="the grid has 20,000 cases"):
        cases_of(tmp_path / "g.toml", f"[grid]\nn = [{', '.join(map(str, range(20_000)))}]")


def cases_of(path: Path, text: str, *words: str) -> list[tuple[str, dict[str, Any]]]:
    path.write_text(text)
    grid = read_grid(path, lambda command: KNOWN if command == "capture" else None, words)
    return [(case.name, dict(case.settings)) for case in grid.cases]


def test_a_grid_has_every_combination_but_those_that_are_excluded(tmp_path: Path) -> None:
    text = """
    [options]
    n = 16
    [grid]
    model = ["qwen", "some/llama"]
    batch-size = [1, 8]
    full = [true]
    [[exclude]]
    model = "some/llama"
    batch-size = 8
    """
    assert cases_of(tmp_path / "g.toml", text) == [
        ("qwen-batch-size-1", {"n": 16, "model": "qwen", "batch-size": 1, "full": True}),
        ("qwen-batch-size-8", {"n": 16, "model": "qwen", "batch-size": 8, "full": True}),
        ("llama-batch-size-1", {"n": 16, "model": "some/llama", "batch-size": 1, "full": True}),
    ]
    twins = "[grid]\nmodel = ['a/x', 'b/x']"
    assert [name for name, _ in cases_of(tmp_path / "g.toml", twins)] == ["x", "x_"]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("[grid]\nmodle = ['a']", 2, "unknown key 'modle'; did you mean 'model'?"),
        ("[options]\nn = 1", 1, "there is no [grid]"),
        ("[grid]\nmodel = 'a'", 2, "model is 'a', expected a list of values"),
        ("[options]\nn = 1\n[grid]\nn = [1]", 4, "n is in [options] too"),
        ("[grid]\nn = [1, 2, 1]", 2, "n has 1 twice"),
        ("[grid]\nn = [[1]]", 2, "n has the value [1], expected text, a number, true or false"),
        ("[grid]\nfull = [1]", 2, "full is 1, expected true or false"),
        ("[grid]\nn = [true]", 2, "n is True, expected a value"),
        (f"[grid]\nn = {list(range(200))}\nbatch-size = {list(range(100))}", 1, "20,000 cases, more than 10,000"),
        ("[grid]\nn = [1]\n[[exclude]]\nn = 1", 3, "every case of the grid is excluded"),
        ("[grid]\nn = [1]\n[[exclude]]\nn = 2", 4, "unknown value 2 of n; known: 1"),
        ("[grid]\nn = [1]\n[exclude]\nn = 1", 3, "exclude is a table, expected [[exclude]]"),
        ("processes = 0\n[grid]\nn = [1]", 1, "processes is 0, expected a whole number from 1 on"),
        ("command = 'bench batch'\n[grid]\nn = [1]", 1, "command = 'bench batch' is a grid of its own now"),
        ("command = 'compare'\n[grid]\nn = [1]", 1, "command is 'compare', expected one that runs cases"),
    ],
)  # fmt: skip
def test_a_wrong_grid_names_its_line(tmp_path: Path, text: str, line: int, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        cases_of(tmp_path / "g.toml", text)
    assert str(raised.value).startswith(f"{tmp_path / 'g.toml'}, line {line}")
    assert message in str(raised.value)


def test_options_of_the_command_line_replace_those_of_the_file(tmp_path: Path) -> None:
    text = """
    [options]
    n = 16
    [grid]
    model = ["qwen", "llama"]
    batch-size = [1, 8]
    [[exclude]]
    model = "llama"
    batch-size = 8
    """
    words = [
        "--model",
        "mine",
        "-n",
        "3",
        "--batch-size=2,4",
        "--full",
        "--generate-arg",
        "a=1",
        "--generate-arg",
        "b=2",
    ]
    more = {"n": 3, "full": True, "generate-arg": ["a=1", "b=2"], "model": "mine"}
    assert cases_of(tmp_path / "g.toml", text, *words) == [
        ("batch-size-2", {**more, "batch-size": 2}), ("batch-size-4", {**more, "batch-size": 4}),
    ]  # fmt: skip
    every = cases_of(tmp_path / "g.toml", "[options]\nn = 1\n[grid]\nmodel = ['qwen']", "--attention", "all")
    assert [settings["attention"] for _, settings in every] == [*ATTENTION]
    for words, message in (
        (("--nn", "1"), "unknown option '--nn' of the cases; did you mean 'n'?"),
        (("-n",), "-n requires a value"), (("--batch-size", "8,8"), "--batch-size: batch-size has 8 twice"),
    ):  # fmt: skip
        with pytest.raises(UsageError) as raised:
            cases_of(tmp_path / "g.toml", text, *words)
        assert str(raised.value) == message


def test_packaged_grids_and_what_was_a_benchmark(molprof: Cli, tmp_path: Path) -> None:
    assert list(packaged()) == ["attention", "batch", "cache", "compile", "matrix", "processors"]
    processors = read_toml(grid_path(Path("processors")), "").content["grid"]["processor"]
    assert processors == ["none", *OF_MOLECULES]
    (tmp_path / "molprof.toml").write_text('[models.mine]\npath = "qwen"\nprocessor = "grammar"\n')
    words = ("--model", "mine,llama", "--processor", "none,lp", "--kv-cache", "static,dynamic", "--share", "1/2")
    shown = molprof("sweep", "cache", *words, "--dry-run", "--device", "cpu", "-n", "2", "-o", "x")
    head = "molprof capture --timed-only --fill --batch-size 8 --repeats 1 --template-threads 1 --device cpu -n 2"
    assert [line.removeprefix(head) for line in shown.stdout.splitlines()[:2]] == [
        f" --model mine --processor none --kv-cache {name} --compile off -o x/mine-none-kv-cache-{name}-compile-off.json"  # noqa: E501
        for name in ("static", "dynamic")
    ]
    assert shown.stderr.endswith("6 cases, to be run into x\n")
    for old, now in (("bench matrix", "matrix"), ("bench recommend x", "recommend"), ("recommend x", "recommend")):
        done = molprof(*old.split())
        assert (done.returncode, f"is now: molprof sweep {now}\n" in done.stderr) == (2, True)


# Sweeps


def swept(folder: Path, *states: tuple[str, str, str | None], **options: Any) -> Path:
    """The folder of a sweep of captures with a state each."""
    folder.mkdir(exist_ok=True)
    with closing(ResultsFile(folder / RESULTS)) as results:
        for name, state, message in states:
            case = LineCase(name, ("capture", "--model", name), str(folder), ".json", options.get(name, {}))
            results.write(record_of(case, 0, "", Ending(state, message)))
    return folder


def test_a_sweep_is_compared_like_beside_like(tmp_path: Path, molprof: Cli) -> None:
    (grid := tmp_path / "grid").mkdir()
    results = ResultsFile(grid / RESULTS)
    for model, processor in (
        ("qwen", "none"),
        ("qwen", "lp"),
        ("llama", "none"),
        ("llama", "lp"),
        ("llama", "grammar"),
    ):
        name = f"{model}-{processor}"
        trace = f"cpu-{model}{'' if processor == 'none' else '-generic' if processor == 'lp' else '-grammar'}.json.gz"
        (grid / f"{name}.json.gz").symlink_to(TRACES / trace)
        options = {"model": model, "processor": processor, "n": 8}
        results.write(record_of(LineCase(name, ("capture",), "grid", ".json.gz", options), 0, "", Ending("ok")))
    results.close()

    def groups(*more: str) -> list[tuple[str, list[str]]]:
        found = json.loads(molprof("compare", "grid", "--format", "json", *more).stdout)
        return [(group["group"], group["labels"]) for group in found["groups"]]

    assert groups() == [
        ("model qwen", ["qwen no lp", "qwen lp:generic"]),
        ("model llama", ["llama no lp", "llama lp:generic", "llama lp:grammar"]),
    ]
    assert groups("--over", "model") == [
        ("processor none", ["qwen no lp", "llama no lp"]), ("processor lp", ["qwen lp:generic", "llama lp:generic"]),
    ]  # fmt: skip
    done = molprof("compare", "grid", "--fail-if", "processor_ns>0")
    assert done.returncode == 1
    assert [line.partition(": ")[2].partition(": ")[0] for line in done.stderr.splitlines() if "failed" in line] == [
        "model qwen", "model llama", "model llama",
    ]  # fmt: skip
    assert ">model llama</h2>" in molprof("compare", "grid", "--format", "html").stdout
    wrong = molprof("compare", "grid", "--over", "n")
    assert (wrong.returncode, "does not vary 'n'\n  it varies model, processor" in wrong.stderr) == (2, True)


def test_results_that_cannot_be_trusted(tmp_path: Path) -> None:
    swept(tmp_path, ("../x", "ok", None))
    with pytest.raises(TraceError, match=r"has a result outside of it: '\.\./x.json'"):
        read_sweep(tmp_path)
    (old := tmp_path / "old").mkdir()
    (old / "index.json").write_text('{"schema": 2, "kind": "molprof sweep", "cases": []}')
    with pytest.raises(TraceError, match="is a sweep of an older molprof") as raised:
        expanded([old])
    assert raised.value.hint == f"molprof compare {old}/*.json.gz, or sweep again"


def test_a_folder_and_its_results_stand_for_its_traces(tmp_path: Path, molprof: Cli) -> None:
    folder, other = tmp_path / "sweep", Path("other.json")
    swept(folder, ("b", "ok", None), ("a", "ok", None), ("missing", "waiting", None))
    swept(folder, ("missing", "failed", "no memory"))
    with pytest.raises(UsageError, match="has no trace yet"):
        expanded([folder])
    for name in ("a", "b"):
        write(folder / f"{name}.json", document())
    for given in (folder, folder / RESULTS):
        found = [folder / "b.json", folder / "a.json", other], [f"{folder}: no trace of missing (failed: no memory)"]
        assert expanded([given, other]) == found
    listed = json.loads(molprof("report", "sweep", "--format", "json").stdout)
    assert [report["trace"]["path"] for report in listed] == ["sweep/b.json", "sweep/a.json"]


def test_results_tell_how_a_case_ended_and_its_log_what_it_said(tmp_path: Path) -> None:
    cases = tuple(LineCase(name, ("report", "absent.json"), str(tmp_path), ".html", {}) for name in "ab")
    plan = SchedulePlan(cases, 2, 0, Limits(60.0), done={("b", 0), ("b", 1)})
    with closing(ResultsFile(tmp_path / RESULTS)) as results:
        (step,) = run_plan(plan, None, results, lambda *told: None)  # what failed is not repeated
    assert (step.turn.case, step.ending.state) == ("a", "failed")
    first, second = read_sweep(tmp_path).results
    assert (first.status, first.message) == ("failed", "cannot read absent.json: No such file or directory")
    assert (second.repeat, second.status, second.output) == (1, "waiting", "a.2.html")
    assert (tmp_path / "logs/a.log").read_text().startswith("molprof: error: cannot read absent.json")


GRID = """
[options]
n = 1
repeats = 1
warmup = 0
max-new-tokens = 3
[grid]
model = ["mine"]
processor = ["lp", "none"]
disagreement = [true]
"""


def test_a_sweep_of_captures(molprof: Cli, tmp_path: Path) -> None:
    (tmp_path / "molprof.toml").write_text('[models.mine]\npath = "qwen"\nprocessor = "grammar"\n')
    (tmp_path / "grid.toml").write_text(GRID)
    line = "--max-new-tokens 3 --model mine --processor lp --disagreement -o grid/lp.json.gz"
    planned = molprof("sweep", "grid.toml", "--dry-run")
    assert planned.stdout == f"molprof capture -n 1 --repeats 1 --warmup 0 {line}\n"
    skipped = "skipped none: disagreement is between the model and a logits processor, and this run has none\n"
    assert planned.stderr == f"{skipped}1 case, to be run into grid\n"
    done = molprof("sweep", "grid.toml")
    assert done.returncode == 0, done.stderr
    second, first = read_sweep(tmp_path / "grid").results
    assert (first.case, first.status, second.status) == ("lp", "ok", "unsupported")
    assert done.stderr.splitlines()[1].startswith("[1/1] ok            lp ")
    report = json.loads(molprof("report", "grid", "--format", "json").stdout)
    assert report["run"]["generated_tokens"] == 3
    again = molprof("sweep", "grid.toml")
    assert (again.returncode, "grid/lp.json.gz already exists" in again.stderr) == (2, True)
    kept = molprof("sweep", "grid.toml", "--resume")
    assert kept.stderr == f"{skipped}grid has the result of every case; next: molprof compare grid\n"
    (tmp_path / "grid.toml").write_text(GRID.replace("n = 1", "n = 2"))
    changed = molprof("sweep", "grid.toml", "--resume")
    assert (changed.returncode, "lp.json.gz was made with other options" in changed.stderr) == (2, True)


def test_a_sweep_of_reports(molprof: Cli, tmp_path: Path) -> None:
    write(tmp_path / "a.json", document())
    (tmp_path / "grid.toml").write_text(
        "command = 'report'\n[grid]\ntraces = ['a.json', 'absent.json']\nall = [true]\n"
    )
    done = molprof("sweep", "grid.toml", "-o", "out")
    assert (done.returncode, "1 of 2 cases did not end well, first traces-absent.json: cannot read" in done.stderr) == (
        3,
        True,
    )
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["logs", "results.jsonl", "traces-a.json.html"]


def test_a_sweep_that_only_measures(molprof: Cli, tmp_path: Path) -> None:
    words = ("--model", "llama", "--attention", "sdpa,flash_attention_2", "--batch-size", "1", "-n", "1")
    done = molprof("sweep", "attention", *words, "--max-new-tokens", "2", "--processes", "1", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert done.stderr.endswith("results: 1 ok, 1 unsupported\nnext: molprof sweep show attention\n")
    shown = json.loads(molprof("sweep", "show", "attention", "--format", "json").stdout)
    assert [(case["attention"], case["status"], case["tokens"]) for case in shown["cases"]] == [
        ("flash_attention_2", "unsupported", None), ("sdpa", "ok", 2),
    ]  # fmt: skip
    assert len(shown["environments"]) == 1  # what the machine was asked for is what the case says of it
    assert "sdpa, dynamic cache" in molprof("sweep", "recommend", "attention").stdout
    wrong = molprof("compare", "attention")
    assert (wrong.returncode, "the sweep attention recorded no trace" in wrong.stderr) == (2, True)
