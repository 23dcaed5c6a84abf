"""Models, logits processors and molecules that come with molprof, as a document. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from molprof.common.document import Document, Section, pairs
from molprof.common.errors import RunError
from molprof.profiler.constraints import PROCESSORS
from molprof.profiler.models.architecture import ARCHITECTURES, NAMED, Architecture, Shape
from molprof.profiler.models.checkpoint import checkpoint_path, read_header
from molprof.profiler.models.tokenizers import VOCABULARIES
from molprof.profiler.molecules.prompts import built_in
from molprof.profiler.project import Project


def presets_document(project: Project) -> Document:
    """Return the models, processors and molecules that come with molprof, and the models and clusters of a project."""
    models = {
        name: [
            _model(name, architecture),
            _checkpoint(name),
            *(f"--size {size}: {_shape(shape)}" for size, shape in NAMED[name].items()),
        ]
        for name, architecture in ARCHITECTURES.items()
    }
    for name, alias in project.models.items():
        others = (("tokenizer", alias.tokenizer), ("--lp", alias.processor))
        models[name] = [", ".join([alias.path, *(f"{what} {value}" for what, value in others if value)])]
    processors = {name: [entry.summary] for name, entry in PROCESSORS.items()} | {"MODULE:FACTORY": ["your own"]}
    molecules = {"built-in": [f"{len(built_in())} held out from training"]}
    clusters = {
        name: [", ".join(f"{key} {value}" for key, value in settings.to_json().items()) or "the cluster's own defaults"]
        for name, settings in project.clusters.items()
    }
    sections = (
        _section("Models (--model)", models),
        _section("Logits processors (--processor; --lp: generic)", processors),
        _section("Molecules (without --smiles)", molecules),
        *([_section(f"Clusters (--submit) of {project.file}", clusters)] if clusters else []),
    )
    data = {"schema": 1, "models": models, "processors": processors, "molecules": molecules, "clusters": clusters}
    return Document("molprof presets", sections, lambda: data)


def _section(title: str, entries: Mapping[str, Sequence[str]]) -> Section:
    """Return a section of names, each with its lines in a separate column."""
    rows = [(name if index == 0 else "", line) for name, lines in entries.items() for index, line in enumerate(lines)]
    return Section(title, table=pairs(rows, wide=True))


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
