"""What comes with molprof: models, logits processors and molecules, as text. Imports no torch."""

from __future__ import annotations

from importlib import resources

from molprof.common.errors import RunError
from molprof.common.text import aligned, escaped
from molprof.profiler.cluster.settings import SlurmSettings
from molprof.profiler.models.architecture import ARCHITECTURES, NAMED, Architecture, Shape
from molprof.profiler.models.checkpoint import checkpoint_path, read_header
from molprof.profiler.models.tokenizers import VOCABULARIES
from molprof.profiler.processors import PROCESSORS
from molprof.profiler.project import ModelAlias, Project


def describe(project: Project) -> str:
    """The models for `--model`, the processors for `--processor`, the molecules used without `--smiles`; escaped.

    Args:
        project: its models and clusters stand beside those that come with molprof.
    """
    models = {
        name: [
            _model(name, architecture),
            _checkpoint(name),
            *(f"--size {size}: {_shape(shape)}" for size, shape in NAMED[name].items()),
        ]
        for name, architecture in ARCHITECTURES.items()
    }
    models |= {name: [_alias(alias)] for name, alias in project.models.items()}
    processors = {name: [entry.summary] for name, entry in PROCESSORS.items()} | {"MODULE:FACTORY": ["your own"]}
    count = sum(bool(line.strip()) for line in _molecules())
    sections = [
        _section("models (--model)", models),
        _section("logits processors (--processor; --lp takes the one that suits the tokenizer)", processors),
        f"molecules (without --smiles)\n  {count} held out from training",
    ]
    if project.clusters:
        clusters = {name: [_cluster(settings)] for name, settings in project.clusters.items()}
        sections.append(_section(f"clusters (--submit) of {project.file}", clusters))
    return "\n\n".join(sections)


def _section(title: str, entries: dict[str, list[str]]) -> str:
    """A title, and under it each name with its lines in a column of their own."""
    rows = [(name if place == 0 else "", line) for name, lines in entries.items() for place, line in enumerate(lines)]
    return f"{escaped(title)}\n{aligned(rows, '  ')}"


def _alias(alias: ModelAlias) -> str:
    others = (("tokenizer", alias.tokenizer), ("--lp", alias.processor))
    return ", ".join([alias.path, *(f"{what} {value}" for what, value in others if value)])


def _cluster(settings: SlurmSettings) -> str:
    return ", ".join(f"{key} {value}" for key, value in settings.to_json().items()) or "the cluster's own defaults"


def _model(name: str, architecture: Architecture) -> str:
    shape = architecture.shape
    vocabulary = VOCABULARIES[name]
    return (
        f"{shape.layers} layers, {shape.hidden} wide, {architecture.logits_width:,} logits; tokenizer of "
        f"{vocabulary.distribution}, {vocabulary.digits} digit{'s' if vocabulary.digits > 1 else ''} a token"
    )


def _shape(shape: Shape) -> str:
    return (
        f"{shape.layers} layers, {shape.hidden} wide, {shape.heads} heads of {shape.head_dim} in {shape.kv_heads} "
        f"groups, MLP {shape.mlp}; the same text"
    )


def _checkpoint(name: str) -> str:
    path = checkpoint_path(name)
    try:
        record = read_header(path).record
    except RunError as problem:
        return str(problem)
    held = record.get("held_out", {})
    size = f"{path.stat().st_size / 1e6:.1f} MB"
    if "valid" not in held:
        return size
    return f"{size}; {held['valid']} of {held['molecules']} held-out molecules valid without constraint"


def _molecules() -> list[str]:
    return resources.files("molprof.profiler.molecules").joinpath("molecules.smi").read_text().splitlines()
