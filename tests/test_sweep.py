"""Sweeps: the cases that a file describes, what is refused, what is kept, and their folder in place of traces."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Cli
from tiny_trace import document, write

from molprof.commands.sweep import arguments
from molprof.common.errors import TraceError, UsageError
from molprof.profiler.jobs.grid import read_sweep
from molprof.profiler.jobs.index import Entry, expanded, read_index, run_cases, write_index

KNOWN = {"n": True, "model": True, "processor": True, "batch-size": True, "sort": False, "full": False, "smiles": True}


def sweep_of(folder: Path, text: str) -> list[tuple[str, str]]:
    path = folder / "grid.toml"
    path.write_text(text)
    return [(case.name, " ".join(arguments(case))) for case in read_sweep(path, KNOWN).cases]


_WRONG = {
    "0": "0.0 is not in the range x>0.",
    "-1": "-1.0 is not in the range x>0.",
    "nan": "nan is not a number of seconds",
    "inf": "inf is not a number of seconds",
}


def test_every_combination_but_the_excluded_ones(tmp_path: Path) -> None:
    text = """
    [options]
    n = 4
    sort = false
    [grid]
    model = ["qwen", "models/mine"]
    processor = ["none", "lp", "generic"]
    batch-size = [1, 8]
    [[exclude]]
    model = "models/mine"
    processor = "lp"
    [[exclude]]
    model = "models/mine"
    processor = "generic"
    batch-size = 8
    """
    before = "-n 4 --no-sort --model"
    assert sweep_of(tmp_path, text) == [
        ("qwen-none-batch-size-1", f"{before} qwen --no-lp --batch-size 1"),
        ("qwen-none-batch-size-8", f"{before} qwen --no-lp --batch-size 8"),
        ("qwen-lp-batch-size-1", f"{before} qwen --lp --batch-size 1"),
        ("qwen-lp-batch-size-8", f"{before} qwen --lp --batch-size 8"),
        ("qwen-generic-batch-size-1", f"{before} qwen --processor generic --batch-size 1"),
        ("qwen-generic-batch-size-8", f"{before} qwen --processor generic --batch-size 8"),
        ("mine-none-batch-size-1", f"{before} models/mine --no-lp --batch-size 1"),
        ("mine-none-batch-size-8", f"{before} models/mine --no-lp --batch-size 8"),
        ("mine-generic-batch-size-1", f"{before} models/mine --processor generic --batch-size 1"),
    ]


def test_names_are_files_and_unlike(tmp_path: Path) -> None:
    text = '[grid]\nmodel = ["a/m", "b/m", "../.."]\nfull = [true, false]'
    assert sweep_of(tmp_path, text) == [
        ("m-full-true", "--model a/m --full"),
        ("m-full-false", "--model a/m"),
        ("m-full-true_", "--model b/m --full"),
        ("m-full-false_", "--model b/m"),
        ("full-true", "--model ../.. --full"),
        ("full-false", "--model ../.."),
    ]


def test_a_name_is_no_longer_than_a_file_may_have(tmp_path: Path) -> None:
    text = f"[grid]\nmodel = ['{'m' * 300}', '{'m' * 301}']"
    assert [name for name, _ in sweep_of(tmp_path, text)] == ["m" * 150, "m" * 150 + "_"]


@pytest.mark.parametrize("limit", ["0", "-1", "nan", "inf"])
def test_a_limit_is_a_number_of_seconds(molprof: Cli, limit: str) -> None:
    for command in (("sweep", "grid.toml"), ("bench", "sdpa", "-o", "x.jsonl"), ("doctor",)):
        done = molprof(*command, "--limit", limit)
        assert (done.returncode, done.stderr.splitlines()[0]) == (
            2,
            f"molprof: error: Invalid value for '--limit': {_WRONG[limit]}",
        )


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("[options]\nn = 1", 1, "there is no [grid]"),
        ("[grid]\nmodle = ['x']", 2, "unknown key 'modle'; did you mean 'model'?"),
        ("[grid]\nmodel = 'x'", 2, "model is 'x', expected a list of values"),
        ("[grid]\nmodel = []", 2, "model is [], expected a list of values"),
        ("[options]\nn = 1\n[grid]\nn = [1, 2]", 4, "n is in [options] too"),
        ("[grid]\nmodel = ['x', 'y', 'x']", 2, "model has 'x' twice"),
        ("[grid]\nfull = [1]", 2, "full is 1, expected true or false"),
        ("[grid]\nn = [true]", 2, "n is True, expected a value"),
        ("[grid]\nn = [[1]]", 2, "n has the value [1], expected text, a number, true or false"),
        ("[options]\nsmiles = {}\n[grid]\nn = [1]", 2, "smiles has the value {}, expected text"),
        ("[grid]\nn = [1]\n[[exclude]]\nn = 1", 3, "every case of the grid is excluded"),
        ("[grid]\nn = [1]\n[[exclude]]\nn = 2", 4, "unknown value 2 of n; known: 1"),
        ("[grid]\nn = [1]\n[[exclude]]\nmodel = 2", 4, "unknown key 'model'; known: n"),
        ("[grid]\nn = [1]\n[exclude]\nn = 1", 3, "exclude is a table, expected [[exclude]]"),
        (f"[grid]\nn = {list(range(101))}\nbatch-size = {list(range(100))}", 1, "the grid has 10,100 cases"),
    ],
)
def test_a_mistake_is_told_with_its_line(tmp_path: Path, text: str, line: int, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        sweep_of(tmp_path, text)
    assert str(raised.value).startswith(f"{tmp_path / 'grid.toml'}, line {line}: {message}")


GRID = """\
[options]
n = 1
[grid]
model = ["qwen"]
kv-cache = ["dynamic", "static"]
compile = ["auto", "eager"]
"""


def test_a_dry_run_prints_commands_and_leaves_out_what_cannot_be(molprof: Cli, tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(GRID)
    done = molprof("sweep", "grid.toml", "--dry-run", "-o", "my traces")
    assert done.returncode == 0
    start = "molprof capture -n 1 --model qwen --kv-cache"
    assert done.stdout.splitlines() == [
        f"{start} dynamic --compile auto -o 'my traces/kv-cache-dynamic-compile-auto.json.gz'",
        f"{start} static --compile auto -o 'my traces/kv-cache-static-compile-auto.json.gz'",
        f"{start} static --compile eager -o 'my traces/kv-cache-static-compile-eager.json.gz'",
    ]
    assert done.stderr.splitlines() == [
        "skipped kv-cache-dynamic-compile-eager: compile 'eager' needs a cache of fixed shape, not 'dynamic'",
        "3 cases, to be captured into my traces",
    ]
    assert not (tmp_path / "my traces").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[grid]\nmodel = ['qwen']\ndtype = ['float9']", "grid.toml, line 3: Invalid value for '--dtype': 'float9'"),
        ("[options]\nn = 'x'\n[grid]\nmodel = ['qwen']", "grid.toml, line 2: Invalid value for '-n': 'x' is not"),
        ("[grid]\noutput = ['a']", "grid.toml, line 2: unknown key 'output'"),
        ("[grid]\nmodel = ['qwen']\nprocessor = ['lp', 'nope']", "grid.toml, line 3: no processor 'nope'"),
        ("[grid]\nmodel = ['qwen', './absent']", "grid.toml, line 2: no folder ./absent to load the model from"),
        ("[options]\nprocessor = 'nope'\n[grid]\nmodel = ['qwen']", "grid.toml, line 2: no processor 'nope'"),
    ],
)
def test_what_no_capture_takes_is_refused(molprof: Cli, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "grid.toml").write_text(text)
    done = molprof("sweep", "grid.toml")
    assert done.returncode == 2
    assert message in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["grid.toml"]


def test_a_case_whose_option_would_do_nothing_is_left_out(molprof: Cli, tmp_path: Path) -> None:
    text = "[options]\nmodel = 'qwen'\ntemperature = 0.8\n[grid]\nsampling = ['greedy', 'sample']"
    (tmp_path / "grid.toml").write_text(text)
    done = molprof("sweep", "grid.toml", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "molprof capture --model qwen --temperature 0.8 --sampling sample -o grid/sampling-sample.json.gz"
    ]
    assert done.stderr.splitlines() == [
        "skipped sampling-greedy: --temperature does nothing with --sampling greedy",
        "1 case, to be captured into grid",
    ]


def entries_of(*names: str) -> list[Entry]:
    return [Entry(name, f"{name}.json", {"model": name}, ("--model", name)) for name in names]


def test_a_case_that_fails_does_not_stop_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    commands = {"good": ["queries"], "bad": ["report", "absent.json"], "last": ["queries", "launches"]}
    entries = {entry.name: entry for entry in entries_of(*commands)}
    told = [(entry.name, entry.state) for entry in run_cases(tmp_path, entries, commands)]
    assert [(entry.state, entry.message) for entry in entries.values()] == [
        ("ok", None),
        ("failed", "cannot read absent.json: No such file or directory"),
        ("ok", None),
    ]
    ends = [("good", "ok"), ("bad", "failed"), ("last", "ok")]
    assert told == [(name, state) for name, end in ends for state in ("running", end)]
    assert read_index(tmp_path) == tuple(entries.values())
    assert "cannot read absent.json" in (tmp_path / "logs/bad.log").read_text()


def test_a_case_that_hangs_is_stopped_and_an_interrupt_keeps_what_is_done(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "hang.json")
    code = (
        "from molprof.profiler.jobs.index import Entry, run_cases\n"
        "from pathlib import Path\n"
        "hang = ['report', 'hang.json']\n"
        "for commands, limit_s in (({'a': hang}, 1.0), ({'b': ['queries'], 'c': hang}, None)):\n"
        "    entries = {name: Entry(name, f'{name}.json', {}, ()) for name in ('a', 'b', 'c')}\n"
        "    for entry in run_cases(Path('.'), entries, commands, limit_s):\n"
        "        print(entry.name, entry.state, flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line.strip())
        if line == "c running\n":
            break
    os.kill(process.pid, signal.SIGINT)
    process.stdout.close()
    assert process.wait(60) != 0
    assert lines == ["a running", "a timed out", "b running", "b ok", "c running"]
    assert [entry.state for entry in read_index(tmp_path) or ()] == ["waiting", "ok", "waiting"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sweep of three, of which two have traces."""
    place = tmp_path / "sweep"
    place.mkdir()
    entries = entries_of("b", "a", "missing")
    entries[2] = Entry("missing", "missing.json", {}, (), "failed", "no memory")
    write_index(place, entries)
    for name in ("a", "b"):
        write(place / f"{name}.json", document())
    return place


def test_a_folder_and_its_index_stand_for_its_traces(folder: Path) -> None:
    other = Path("other.json")
    for given in (folder, folder / "index.json"):
        assert expanded([given, other]) == (
            [folder / "b.json", folder / "a.json", other],
            [f"{folder}: no trace of missing (failed: no memory)"],
        )
    (folder / "a.json").unlink()
    (folder / "b.json").unlink()
    with pytest.raises(UsageError, match="has no trace yet"):
        expanded([folder])
    assert expanded([folder.parent]) == ([folder.parent], [])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 2}, "is of schema 2"),
        ({"cases": [{"name": "x"}]}, r"index.json: cases: \[0\]: missing field `trace`"),
        ({"cases": [{"name": "x", "trace": "../x", "options": {}, "arguments": []}]}, r"outside its folder: '\.\./x'"),
    ],
    ids=["newer", "damaged", "outside"],
)
def test_an_index_that_cannot_be_trusted(folder: Path, change: dict[str, object], message: str) -> None:
    content = json.loads((folder / "index.json").read_text())
    (folder / "index.json").write_text(json.dumps(content | change))
    with pytest.raises(TraceError, match=message):
        read_index(folder)


def test_reports_and_comparisons_of_a_folder(folder: Path, molprof: Cli, tmp_path: Path) -> None:
    compared = molprof("compare", "sweep", "--format", "json")
    assert compared.returncode == 0, compared.stderr
    assert [run["trace"]["path"] for run in json.loads(compared.stdout)["runs"]] == ["sweep/b.json", "sweep/a.json"]
    listed = json.loads(molprof("report", "sweep", "--format", "json").stdout)
    assert [report["trace"]["path"] for report in listed] == ["sweep/b.json", "sweep/a.json"]
    broken = molprof("report", "sweep", "--format", "csv", "-o", "out", "--fail-if", "junk_tokens>0")
    assert broken.returncode == 1
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.csv", "b.csv"]
    assert broken.stderr.count("failed: junk_tokens>0") == 2
    again = molprof("report", "sweep", "--format", "csv", "-o", "out")
    assert (again.returncode, "out/b.csv already exists" in again.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sweep", "sweep/b.json", "--format", "html"), "several reports as html need a folder"),
        (("sweep/b.json", "other/b.json", "-o", "out"), "sweep/b.json and other/b.json would share out/b.txt"),
        (("sweep/b.json", "other/b.json", "-o", "sweep/b.json"), "sweep/b.json is not a folder"),
        (("sweep/b.json", "--detach"), "--detach requires --submit NAME"),
        (("sweep/b.json", "--slurm", "cpus=1"), "--slurm requires --submit NAME"),
    ],
)
def test_what_several_reports_cannot_be(
    folder: Path, molprof: Cli, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    (tmp_path / "other").mkdir()
    write(tmp_path / "other/b.json", document())
    done = molprof("report", *arguments)
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr


def test_what_is_there_is_kept_and_what_has_changed_is_not(molprof: Cli, tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text("[grid]\nmodel = ['qwen']\nn = [1, 2]\n")
    folder = tmp_path / "grid"
    folder.mkdir()
    entries = [
        Entry(f"n-{n}", f"n-{n}.json.gz", {"model": "qwen", "n": n}, ("--model", "qwen", "-n", str(n)))
        for n in (1, 2)
    ]  # fmt: skip
    for entry in entries:
        write(folder / entry.trace, document())
    write_index(folder, entries)
    first = molprof("sweep", "grid.toml")
    assert (first.returncode, "grid/n-1.json.gz already exists" in first.stderr) == (2, True)
    assert (
        molprof("sweep", "grid.toml", "--resume").stderr
        == "grid has the trace of every case; next: molprof compare grid\n"
    )
    assert [entry.state for entry in read_index(folder) or ()] == ["ok", "ok"]
    (tmp_path / "grid.toml").write_text("[options]\nseed = 1\n[grid]\nmodel = ['qwen']\nn = [1, 2]\n")
    changed = molprof("sweep", "grid.toml", "--resume")
    assert (changed.returncode, "n-1.json.gz was captured with other options" in changed.stderr) == (2, True)


def test_a_sweep_here_captures_by_a_models_short_name(molprof: Cli, tmp_path: Path) -> None:
    (tmp_path / "molprof.toml").write_text('[models.mine]\npath = "qwen"\nprocessor = "grammar"\n')
    (tmp_path / "grid.toml").write_text(
        "[options]\nn = 1\nrepeats = 1\nwarmup = 0\nmax-new-tokens = 3\n[grid]\nmodel = ['mine']\nprocessor = ['lp']\n"
    )
    done = molprof("sweep", "grid.toml")
    assert done.returncode == 0, done.stderr
    (entry,) = read_index(tmp_path / "grid") or ()
    assert (entry.name, entry.state) == ("mine-lp", "ok")
    report = json.loads(molprof("report", "grid", "--format", "json").stdout)
    assert report["run"]["generated_tokens"] == 3
    assert (tmp_path / "grid/logs/mine-lp.log").read_text().endswith("next: molprof report grid/mine-lp.json.gz\n")
