"""Many cases here: turns, grid files, and sweeps, whose folder stands for its traces."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli
from tiny_trace import document, write

from molprof.common.errors import TraceError, UsageError
from molprof.common.process import Ending
from molprof.profiler.jobs.grid import read_grid
from molprof.profiler.jobs.index import Entry, expanded, read_index, remaining, run_entry, write_index
from molprof.profiler.jobs.runner import Turn, run_here

TRACES = Path(__file__).parent.parent / "traces"


def test_turns_run_once_and_what_failed_is_not_repeated() -> None:
    ends = {"a": Ending("ok", seconds=2.0), "b": Ending("failed", "no", 1, seconds=4.0), "c": Ending("unsupported")}
    begun: list[tuple[str, int, int]] = []
    turns = [Turn(name, name.upper(), repeat) for repeat in (0, 1) for name in "cab"]
    steps = list(run_here(turns, lambda turn: ends[turn.case], lambda *told: begun.append(told)))
    assert begun == [("C", 1, 6), ("A", 2, 5), ("B", 3, 5), ("A", 4, 4)]
    found = [(step.turn.case, step.turn.repeat, step.ending.state, step.number, step.of, step.rest_s) for step in steps]
    assert found == [
        ("c", 0, "unsupported", 1, 5, None), ("a", 0, "ok", 2, 5, 6.0), ("b", 0, "failed", 3, 4, 2.0),
        ("a", 1, "ok", 4, 4, 0),
    ]  # fmt: skip


# Grid files


def test_a_list_of_many_values_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="n has 7 twice"):
        cases_of(tmp_path / "g.toml", f"[grid]\nn = [{', '.join(map(str, range(20_000)))}, 7]")
    with pytest.raises(UsageError, match="the grid has 20,000 cases"):
        cases_of(tmp_path / "g.toml", f"[grid]\nn = [{', '.join(map(str, range(20_000)))}]")


KNOWN = {"model": True, "processor": True, "batch-size": True, "n": True, "full": False}


def cases_of(path: Path, text: str) -> list[tuple[str, dict[str, Any]]]:
    path.write_text(text)
    grid = read_grid(path, lambda command: KNOWN if command == "capture" else None)
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
        ("command = 'compare'\n[grid]\nn = [1]", 1, "command is 'compare', expected one that runs cases"),
    ],
)  # fmt: skip
def test_a_wrong_grid_names_its_line(tmp_path: Path, text: str, line: int, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        cases_of(tmp_path / "g.toml", text)
    assert str(raised.value).startswith(f"{tmp_path / 'g.toml'}, line {line}")
    assert message in str(raised.value)


# Sweeps


def test_a_sweep_is_compared_like_beside_like(tmp_path: Path, molprof: Cli) -> None:
    (grid := tmp_path / "grid").mkdir()
    entries = []
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
        entries.append(Entry(name, f"{name}.json.gz", {"model": model, "processor": processor, "n": 8}, ("capture",)))
    write_index(grid, entries)

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


def entry_of(name: str, state: str = "waiting", **more: Any) -> Entry:
    return Entry(name, f"{name}.json", {}, ("capture", "--model", name), state, **more)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 3}, "is of schema 3"),
        ({"cases": [{"name": "x"}]}, r"index.json: cases: \[0\]: missing field `output`"),
        ({"cases": [{"name": "x", "output": "../x", "options": {}, "arguments": []}]}, r"outside its folder: '\.\./x'"),
    ],
)
def test_an_index_that_cannot_be_trusted(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    write_index(tmp_path, [entry_of("a")])
    content = json.loads((tmp_path / "index.json").read_text())
    (tmp_path / "index.json").write_text(json.dumps(content | change))
    with pytest.raises(TraceError, match=message):
        read_index(tmp_path)


def test_a_folder_and_its_index_stand_for_its_traces(tmp_path: Path, molprof: Cli) -> None:
    folder, other = tmp_path / "sweep", Path("other.json")
    folder.mkdir()
    write_index(folder, [entry_of("b"), entry_of("a"), entry_of("missing", "failed", message="no memory")])
    with pytest.raises(UsageError, match="has no trace yet"):
        expanded([folder])
    for name in ("a", "b"):
        write(folder / f"{name}.json", document())
    for given in (folder, folder / "index.json"):
        found = [folder / "b.json", folder / "a.json", other], [f"{folder}: no trace of missing (failed: no memory)"]
        assert expanded([given, other]) == found
    listed = json.loads(molprof("report", "sweep", "--format", "json").stdout)
    assert [report["trace"]["path"] for report in listed] == ["sweep/b.json", "sweep/a.json"]


@pytest.mark.parametrize(("ending", "again"), [("json", []), ("jsonl", ["stopped"])])
def test_a_benchmark_that_was_stopped_goes_on(tmp_path: Path, ending: str, again: list[str]) -> None:
    entries = {
        name: replace(entry_of(name, state), output=f"{name}.{ending}")
        for name, state in (("done", "ok"), ("stopped", "waiting"))
    }
    write_index(tmp_path, entries.values())
    for entry in entries.values():
        (tmp_path / entry.output).touch()
    left = remaining(tmp_path, entries, [*entries.values()], resume=True, force=False, busy=())
    assert [entry.name for entry in left] == again
    assert [entry.state for entry in read_index(tmp_path) or ()] == ["ok", "waiting" if again else "ok"]
    with pytest.raises(UsageError, match=f"done.{ending} already exists"):
        remaining(tmp_path, entries, [*entries.values()], resume=False, force=False, busy=())


def test_the_index_tells_how_a_case_ended_and_its_log_what_it_said(tmp_path: Path) -> None:
    entries = {name: entry_of(name) for name in ("a", "b")}
    ending = run_entry(tmp_path, entries, "a", ["report", "absent.json"], 60.0)
    assert (ending.state, ending.exit_code) == ("failed", 2)
    first, second = read_index(tmp_path) or ()
    assert (first.state, first.message) == ("failed", "cannot read absent.json: No such file or directory")
    assert first.seconds == ending.seconds
    assert second.state == "waiting"
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
    first, second = read_index(tmp_path / "grid") or ()
    assert (first.name, first.state, second.state) == ("lp", "ok", "unsupported")
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


def test_a_sweep_of_reports_and_of_benchmarks(molprof: Cli, tmp_path: Path) -> None:
    write(tmp_path / "a.json", document())
    (tmp_path / "grid.toml").write_text(
        "command = 'report'\n[grid]\ntraces = ['a.json', 'absent.json']\nall = [true]\n"
    )
    done = molprof("sweep", "grid.toml", "-o", "out")
    assert (done.returncode, "1 of 2 cases did not end well, first traces-absent.json: cannot read" in done.stderr) == (
        3,
        True,
    )
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["index.json", "logs", "traces-a.json.html"]
    (tmp_path / "bench.toml").write_text("command = 'bench batch'\n[options]\nmodel='qwen'\n[grid]\nrepeats = [1, 2]\n")
    planned = molprof("sweep", "bench.toml", "--dry-run").stdout.splitlines()
    assert planned == [
        f"molprof bench batch --model qwen --repeats {count} -o bench/repeats-{count}.jsonl --resume"
        for count in (1, 2)
    ]
