"""`molprof.toml`: clusters and models of a project by short names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from molprof.common.errors import UsageError
from molprof.common.jobs.resources import SlurmSettings, slurm_table
from molprof.common.text_format import ANSWER, DEFAULT, PROMPT, TextFormat
from molprof.common.toml_file import TomlFile, read_toml, unknown
from molprof.profiler.models.architecture import ARCHITECTURES

NAME = "molprof.toml"
VARIABLE = "MOLPROF_CONFIG"
_EXAMPLE = """\
[slurm.h100]
partition = "gpu"
gpus = 1
time = "2:00:00"
[models.mine]
path = "checkpoints/mine"
tokenizer = "qwen"
processor = "generic"
prompt-format = "[SMILES]{smiles}[/SMILES]"
answer-format = "[CONFORMER]{atom}<{x},{y},{z}>...[/CONFORMER]\""""
_KEYS = ("path", "tokenizer", "processor", "prompt-format", "answer-format")
# `--submit slurm` requires no table: without one, the cluster's own defaults.
DEFAULT_CLUSTER = "slurm"


@dataclass(frozen=True)
class ModelAlias:
    """A model with a short name."""

    path: str  # folder or hub id; folders are relative to the file
    tokenizer: str | None = None  # preset, folder or hub id; None: the model's own
    processor: str | None = None  # the one of `--lp`; None: by the tokenizer
    form: TextFormat = DEFAULT  # how its prompts and answers are written


@dataclass(frozen=True)
class Project:
    """Content of the file; empty without one."""

    file: Path | None = None  # None without one
    clusters: Mapping[str, SlurmSettings] = field(default_factory=dict)
    models: Mapping[str, ModelAlias] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """The folder of the file, else the current one."""
        return Path.cwd() if self.file is None else self.file.parent.absolute()

    def cluster(self, name: str) -> SlurmSettings:
        """Return the table of that name; for `slurm` without one, the cluster's own defaults."""
        if name not in self.clusters and name != DEFAULT_CLUSTER:
            names = [DEFAULT_CLUSTER, *(key for key in self.clusters if key != DEFAULT_CLUSTER)]
            where = f"in {self.file}" if self.file else f"and no {NAME} here or above"
            raise UsageError(f"{unknown(f'cluster {name!r}', name, names)} ({where})", hint=_EXAMPLE)
        return self.clusters.get(name, SlurmSettings())

    def model(self, name: str) -> ModelAlias:
        """Return the model of that short name; for any other name, the name itself as a path."""
        return self.models.get(name, ModelAlias(name))

    def tokenizer(self, name: str | None, of: ModelAlias | None = None) -> str | None:
        """Return the tokenizer of the model `name`, or `name` itself; without a name, that of `of`."""
        if name is None:
            return None if of is None else of.tokenizer
        alias = self.models.get(name)
        return name if alias is None else alias.tokenizer or alias.path

    def asked(self, model: str, tokenizer: str | None, prompt: str | None, answer: str | None) -> dict[str, Any]:
        """Return these settings; missing ones come from the table of the model's short name."""
        alias = self.model(model)
        return {
            "model": alias.path,
            "tokenizer": self.tokenizer(tokenizer, alias),
            "prompt_format": prompt or alias.form.prompt,
            "answer_format": answer or alias.form.answer,
        }


def find_project(path: Path | None = None) -> Project:
    """Read the given file, that of `MOLPROF_CONFIG`, or the nearest in the current folder and its parents."""
    if path is None and (named := os.environ.get(VARIABLE)):
        path = Path(named)
    if path is None:
        here = Path.cwd()
        path = next((folder / NAME for folder in (here, *here.parents) if (folder / NAME).is_file()), None)
    return Project() if path is None else read_project(path)


def read_project(path: Path) -> Project:
    """Read the project file. Raises UsageError."""
    file = read_toml(path, _EXAMPLE)
    file.check_keys(file.content, [], ("slurm", "models"))
    clusters = {name: slurm_table(file, name) for name in _tables(file, "slurm")}
    models = {name: _model(file, name) for name in _tables(file, "models")}
    return Project(path, clusters, models)


def _tables(file: TomlFile, kind: str) -> dict[str, Any]:
    """Return the tables `[kind.NAME]`, by name."""
    tables = file.content.get(kind, {})
    if not isinstance(tables, dict):
        file.refuse(f"{kind} is {tables!r}, expected tables [{kind}.NAME]", [kind])
    for name, table in tables.items():
        if not isinstance(table, dict):
            file.refuse(f"{kind}.{name} is {table!r}, expected a table [{kind}.NAME]", [kind, name])
    return tables


def _model(file: TomlFile, name: str) -> ModelAlias:
    where = ["models", name]
    table = file.check_keys(file.content["models"][name], where, _KEYS)
    if name in ARCHITECTURES:
        file.refuse(f"the name {name!r} is taken by a preset", where)
    if "path" not in table:
        file.refuse(f"the model {name!r} has no path", where)
    for key, value in table.items():
        if not isinstance(value, str) or not value or "\0" in value:
            file.refuse(f"{key} is {value!r}, expected text", [*where, key])
    try:
        form = TextFormat(table.get("prompt-format", PROMPT), table.get("answer-format", ANSWER))
    except UsageError as problem:
        # The message begins with the option's name.
        key = "prompt-format" if str(problem).startswith("--prompt") else "answer-format"
        file.refuse(str(problem).removeprefix("--"), [*where, key], problem.hint)
    folder = file.path.parent
    return ModelAlias(
        _beside(folder, table["path"]),
        _beside(folder, table["tokenizer"]) if "tokenizer" in table else None,
        table.get("processor"),
        form,
    )


def _beside(folder: Path, name: str) -> str:
    """Return a name's path if it is, or can only be, a folder next to the file; any other name unchanged."""
    path = Path(name).expanduser()
    if path.is_absolute() or name.startswith((".", "~")) or (name not in ARCHITECTURES and (folder / path).is_dir()):
        return str((folder / path).absolute())
    return name
