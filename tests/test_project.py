"""molprof.toml gives models and clusters by short names, and its mistakes are explained."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from conftest import Cli

from molprof.common.errors import UsageError
from molprof.common.jobs.resources import SlurmSettings, overridden
from molprof.common.toml_file import read_toml
from molprof.common.typed_json import read_typed
from molprof.profiler.project import ModelAlias, Project, find_project, read_project

WHOLE = """\
# a comment
[slurm.h100]
partition = "gpu"
gpus = "h100:2"
time = "1-12"
memory = "64G"
account = "chem"
constraint = "nvlink"
qos = "long"
cpus = 8
parallel = 4
setup = [
  "module load cuda",
  "ulimit -c 0",
]
sbatch = { reservation = "mine", exclusive = true, requeue = false }

[slurm.small]

[models.mine]
path = "checkpoint"
tokenizer = "qwen"
processor = "generic"

[models."far away"]
path = "someone/model"
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "molprof.toml").write_text(WHOLE)
    (tmp_path / "checkpoint").mkdir()
    return read_project(tmp_path / "molprof.toml")


def test_a_file_gives_clusters_and_models(project: Project, tmp_path: Path) -> None:
    assert project.cluster("h100") == SlurmSettings(
        partition="gpu", account="chem", qos="long", constraint="nvlink", gpus="h100:2", cpus=8, time="1-12",
        memory="64G", parallel=4, setup=("module load cuda", "ulimit -c 0"),
        sbatch={"reservation": "mine", "exclusive": True},
    )  # fmt: skip
    assert project.cluster("small") == project.cluster("slurm") == SlurmSettings()
    assert project.model("mine") == ModelAlias(str(tmp_path / "checkpoint"), "qwen", "generic")
    assert project.model("far away").path == "someone/model"
    assert project.model("./other") == ModelAlias("./other")
    assert project.tokenizer("mine") == "qwen"
    assert project.tokenizer("far away") == "someone/model"
    assert project.tokenizer("llama", project.model("mine")) == "llama"
    assert project.tokenizer(None, project.model("mine")) == "qwen"
    assert project.tokenizer(None, project.model("far away")) is None


def test_slurm_settings_are_submitits_parameters_and_come_back_from_json(project: Project) -> None:
    settings = project.cluster("h100")
    assert settings.parameters() == {
        "partition": "gpu",
        "account": "chem",
        "qos": "long",
        "constraint": "nvlink",
        "gpus_per_node": "h100:2",
        "cpus_per_task": 8,
        "time": "1-12",
        "mem": "64G",
        "setup": ["module load cuda", "ulimit -c 0"],
        "array_parallelism": 4,
        "srun_args": ["--cpus-per-task=8"],
    }
    assert SlurmSettings().parameters() == {"time": None}
    assert read_typed(settings.to_json(), SlurmSettings, "job") == settings


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ('[slurm.a]\npartiton = "x"', 2, "unknown key 'partiton'; did you mean 'partition'?"),
        ('[slurm.a]\nwhatever = "x"', 2, "unknown key 'whatever'; known: partition, account"),
        ("[slurms.a]", 1, "unknown key 'slurms'; did you mean 'slurm'?"),
        ('# why\n\n[slurm.a]\nsetup = [\n "x",\n]\ntime = "soon"', 7, "time is 'soon', expected minutes, or a time"),
        ("[slurm.a]\ntime = true", 2, "time is True, expected minutes"),
        ('[slurm.a]\nmemory = "64 GB"', 2, "memory is '64 GB', expected a whole number with K, M, G or T"),
        ("[slurm.a]\ngpus = -1", 2, "gpus is -1, expected a number of GPUs"),
        ("[slurm.a]\ncpus = 0", 2, "cpus is 0, expected a whole number of at least 1"),
        ('[slurm.a]\npartition = "a\\nb"', 2, "partition is 'a\\nb', expected text on one line"),
        ('[slurm.a]\nsbatch = { a = "x\\n#SBATCH" }', 2, "sbatch is {'a': 'x\\n#SBATCH'}, expected options of sbatch"),
        ('[slurm.a]\nsbatch = { "a b" = 1 }', 2, "sbatch is {'a b': 1}, expected options of sbatch"),
        ("[slurm.a]\nsetup = [1]", 2, "setup is [1], expected shell lines"),
        ('x = """\n[slurm.a]\n"""', 1, "unknown key 'x'"),
        ('[slurm]\na = "gpu"', 2, "slurm.a is 'gpu', expected a table [slurm.NAME]"),
        ("slurm = 3", 1, "slurm is 3, expected tables [slurm.NAME]"),
        ('[models.a]\n\n[models.b]\npath = "x"', 1, "the model 'a' has no path"),
        ('[models.a]\npath = "x"\n[models.qwen]\npath = "y"', 3, "the name 'qwen' is taken by a preset"),
        ('[models]\na = { path = "x",\tprocesor = "y" }', 2, "unknown key 'procesor'; did you mean 'processor'?"),
        ("[models.a]\npath = 7", 2, "path is 7, expected text"),
        ('[models.a]\npath = "a\\u0000"', 2, "path is 'a\\x00', expected text"),
        ('[slurm.a]\ncpus = "\u00b2"', 2, "cpus is '\u00b2', expected a whole number of at least 1"),
        ('[slurm.a]\ncpus = "\u0663"', 2, "cpus is '\u0663', expected a whole number of at least 1"),
        (f"[slurm.a]\ntime = {10**10}", 2, "time is 10000000000, expected minutes, or a time"),
        (f'[slurm.a]\ntime = "{"9" * 5000}"', 2, f"time is '{'9' * 79}... (5,002 characters), expected minutes"),
        ('[slurm.a]\nsetup = "a\\u0000"', 2, "setup is 'a\\x00', expected shell lines"),
    ],
)
def test_a_mistake_is_told_with_its_line(tmp_path: Path, text: str, line: int, message: str) -> None:
    path = tmp_path / "molprof.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as raised:
        read_project(path)
    told = re.sub(r", \[\w+\.\w+\]: ", ": ", str(raised.value), count=1)
    assert told.startswith(f"{path}, line {line}: {message}")


@pytest.mark.parametrize("wrong", ["cpu = 4", "cpus = 0"])
def test_a_mistake_is_told_with_its_table(tmp_path: Path, wrong: str) -> None:
    path = tmp_path / "molprof.toml"
    path.write_text(f"[slurm.a]\ncpus = 1\n[slurm.b]\n{wrong}\n")
    with pytest.raises(UsageError, match=r"molprof\.toml, line 4, \[slurm\.b\]: "):
        read_project(path)


def test_what_is_no_toml_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "molprof.toml"
    path.write_text("[slurm.a\n")
    with pytest.raises(UsageError, match=r"is not TOML: .*line 1"):
        read_project(path)
    path.write_text(f"a = {'9' * 5000}")
    with pytest.raises(UsageError, match="is not TOML: Exceeds the limit"):
        read_project(path)
    path.write_bytes(b"\xff")
    with pytest.raises(UsageError, match="is not UTF-8 text: invalid start byte at byte 0"):
        read_project(path)
    path.write_text("a = " + "[" * 9999)
    with pytest.raises(UsageError, match="is not TOML: nested too deeply"):
        read_project(path)


def test_the_mark_that_editors_of_windows_write_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "molprof.toml"
    path.write_text('\ufeff[models.a]\npath = "x"\n', encoding="utf-8")
    assert read_project(path).model("a").path == "x"


def test_the_line_of_a_key_is_counted_by_statements(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text('a = [\n  1,\n]\nb.c = 2\n[[d]]\n[[d]]\n"e f" = """\nx = 1\n"""\n')
    file = read_toml(path, "")
    lines = {keys: file.line(keys) for keys in (("a",), ("b", "c"), ("d",), ("d", 1), ("d", 1, "e f"), ("d", 1, "g"))}
    assert lines == {("a",): 1, ("b", "c"): 4, ("d",): 5, ("d", 1): 6, ("d", 1, "e f"): 7, ("d", 1, "g"): 6}


def test_the_nearest_file_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "a/b"
    inner.mkdir(parents=True)
    (tmp_path / "molprof.toml").write_text("[slurm.outer]\n")
    (tmp_path / "other.toml").write_text("[slurm.other]\n")
    monkeypatch.chdir(inner)
    assert (list(find_project().clusters), find_project().folder) == (["outer"], tmp_path)
    assert list(find_project(tmp_path / "other.toml").clusters) == ["other"]
    monkeypatch.setenv("MOLPROF_CONFIG", str(tmp_path / "other.toml"))
    assert list(find_project().clusters) == ["other"]
    with pytest.raises(UsageError, match="No such file"):
        find_project(tmp_path / "absent.toml")


def test_short_names_are_listed_and_taken(project: Project, tmp_path: Path, molprof: Cli) -> None:
    assert project.file is not None
    listed = " ".join(molprof("presets").stdout.split())
    assert f" mine {tmp_path / 'checkpoint'}, tokenizer qwen, --lp generic " in listed
    assert f"Clusters (--submit) of {project.file} h100 partition gpu, account chem," in listed
    conformers = tmp_path / "c.txt"
    conformers.write_text("[C]<1.0,2.0,3.0>\n")
    counted = {
        name: json.loads(molprof("drift", "--tokenizer", name, "--conformers", "c.txt", "--format", "json").stdout)
        for name in ("mine", "qwen")
    }
    assert json.dumps(counted["mine"]).replace("mine", "qwen") == json.dumps(counted["qwen"])


def test_a_model_of_the_project_has_its_own_format(tmp_path: Path, molprof: Cli) -> None:
    tags = "<mol>{atom}<{x} {y} {z}>...</mol>"
    (tmp_path / "molprof.toml").write_text(f'[models.mine]\npath = "qwen"\nanswer-format = "{tags}"\n')
    (tmp_path / "c.txt").write_text("[C]<1.0 2.0 3.0>\n")
    mine = molprof("drift", "--tokenizer", "mine", "--conformers", "c.txt", "--format", "json")
    assert mine.returncode == 0, mine.stderr
    given = molprof(
        "drift", "--tokenizer", "qwen", "--answer-format", tags, "--conformers", "c.txt", "--format", "json"
    )
    assert mine.stdout.replace('"mine"', '"qwen"') == given.stdout
    both = molprof("drift", "--tokenizer", "mine", "--tokenizer", "qwen", "--conformers", "c.txt")
    assert (both.returncode, both.stdout) == (2, "")
    assert "the models mine, qwen write other texts: c.txt cannot be of all" in both.stderr


def test_an_unknown_cluster_names_the_nearest(project: Project) -> None:
    with pytest.raises(UsageError, match="unknown cluster 'h10'; did you mean 'h100'\\?"):
        project.cluster("h10")
    with pytest.raises(UsageError, match=r"no molprof\.toml here or above"):
        Project().cluster("h100")


def test_options_stand_in_for_the_tables() -> None:
    base = SlurmSettings(partition="gpu", cpus=8)
    changed = overridden(base, ["partition=big", "time=2:00:00", "gpus=2", "setup=echo a=b"])
    assert changed == SlurmSettings(partition="big", cpus=8, time="2:00:00", gpus="2", setup=("echo a=b",))
    for option, message in (
        ("partition", "--slurm 'partition' is not KEY=VALUE"),
        ("partitoin=x", "unknown --slurm partitoin; did you mean 'partition'?"),
        ("cpus=x", "--slurm cpus is 'x', expected a whole number of at least 1"),
    ):
        with pytest.raises(UsageError) as raised:
            overridden(base, [option])
        assert str(raised.value) == message
