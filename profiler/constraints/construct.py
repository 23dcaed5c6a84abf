"""A user's class or function, called by the names of its parameters: what of a run or of a batch each name means."""

from __future__ import annotations

import inspect
import json
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from molprof.common.errors import UsageError
from molprof.profiler.models.target import Target
from molprof.profiler.molecules.prompts import Prompt
from molprof.profiler.molecules.template import Template

_TEMPLATES = "templates"


@dataclass(frozen=True)
class Rows:
    """What a processor of one batch is made for."""

    templates: Sequence[Template]  # empty for prompts of plain text
    prompt_width: int  # columns before the answer, padding on the left included
    prompts: Sequence[Prompt]


_OF_RUN: dict[str, Callable[[Target], Any]] = {
    "target": lambda target: target,
    "tokenizer": lambda target: target.tokenizer,
    "eos_token_id": lambda target: target.eos,
    "pad_token_id": lambda target: target.pad,
    "bos_token_id": lambda target: target.tokenizer.bos_token_id,
    "vocab_size": lambda target: target.logits_width,
    "device": lambda target: target.device,
}
_OF_BATCH: dict[str, Callable[[Rows], Any]] = {
    _TEMPLATES: lambda rows: list(rows.templates),
    "prompt_lengths": lambda rows: [rows.prompt_width] * len(rows.prompts),
    "prompt_length": lambda rows: rows.prompt_width,
    "prompts": lambda rows: [prompt.text for prompt in rows.prompts],
    "smiles": lambda rows: [prompt.molecule.smiles for prompt in rows.prompts if prompt.molecule is not None],
    "batch_size": lambda rows: len(rows.prompts),
}
_OF_MOLECULES = (_TEMPLATES, "smiles")
SUPPLIED = (*_OF_RUN, *_OF_BATCH)


@dataclass(frozen=True)
class Construction:
    """How to call `factory`, the class or function of `--processor name`.

    Raises UsageError where it requires a parameter that nothing supplies, or lacks one that `given` names.
    """

    name: str
    factory: Callable[..., Any]
    target: Target
    given: Mapping[str, Any]  # of `--processor-arg`

    def __post_init__(self) -> None:
        _check(self.name, self.factory, self.given, SUPPLIED)

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(inspect.signature(self.factory).parameters)

    @property
    def of_batch(self) -> bool:
        """Whether it can be made for one batch only."""
        return any(name in _OF_BATCH and name not in self._given for name in self._names)

    @property
    def needs_molecules(self) -> bool:
        required = {
            item.name for item in inspect.signature(self.factory).parameters.values() if item.default is item.empty
        }
        return any(name in required and name not in self._given for name in _OF_MOLECULES)

    @cached_property
    def _given(self) -> dict[str, Any]:
        """Without a builder of templates, which is no value by itself."""
        return {key: value for key, value in self.given.items() if self._builder is None or key != _TEMPLATES}

    @cached_property
    def _builder(self) -> Callable[..., Any] | None:
        """What makes the factory's own kind of template for a molecule; None: it gets molprof's.

        `--processor-arg templates=module:function` names it.
        """
        named = self.given.get(_TEMPLATES)
        if _TEMPLATES not in self._names or not isinstance(named, str):
            return None
        try:
            builder: Callable[..., Any] = pkgutil.resolve_name(named)
        except (ImportError, AttributeError, ValueError) as problem:
            hint = "--processor-arg templates=package.module:function"
            raise UsageError(f"no function {named!r} makes templates: {problem}", hint) from problem
        _check(named, builder, {}, (*_OF_RUN, "smiles"))
        return builder

    def make(self, rows: Rows | None) -> Any:
        """The processor, of a batch if there is one."""
        values = {name: read(self.target) for name, read in _OF_RUN.items() if name in self._names}
        if rows is not None:
            values |= {name: read(rows) for name, read in _OF_BATCH.items() if name in self._names}
            if self._builder is not None:
                values[_TEMPLATES] = [self._built(text) for text in _OF_BATCH["smiles"](rows)]
        return self.factory(**values | self._given)

    def _built(self, smiles: str) -> Any:
        assert self._builder is not None
        names = inspect.signature(self._builder).parameters
        values = {name: read(self.target) for name, read in _OF_RUN.items() if name in names}
        return self._builder(**values | ({"smiles": smiles} if "smiles" in names else {}))


def construction(name: str, factory: Callable[..., Any], target: Target, given: Sequence[str]) -> Construction | None:
    """How to call a factory by names; None where it takes a `Target`, whatever its one parameter is called."""
    return None if _takes_target(factory, given) else Construction(name, factory, target, read_arguments(given))


def check_call(name: str, factory: Callable[..., Any], given: Sequence[str]) -> None:
    """Raise the UsageErrors of `Construction` that need no model."""
    if not _takes_target(factory, given):
        _check(name, factory, read_arguments(given), SUPPLIED)


def _takes_target(factory: Callable[..., Any], given: Sequence[str]) -> bool:
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # written in C, or no function at all: the call tells
        return True
    required = [item.name for item in parameters if item.default is item.empty and item.kind < item.VAR_POSITIONAL]
    return not given and not inspect.isclass(factory) and len(required) == 1 and required[0] not in SUPPLIED


def _check(name: str, called: Callable[..., Any], given: Mapping[str, Any], supplied: Sequence[str]) -> None:
    parameters = inspect.signature(called).parameters.values()
    named = [item.name for item in parameters if item.kind in (item.POSITIONAL_OR_KEYWORD, item.KEYWORD_ONLY)]
    if not any(item.kind is item.VAR_KEYWORD for item in parameters):
        for key in given:
            if key not in named:
                raise UsageError(f"{name} has no parameter {key!r}", f"its parameters: {', '.join(named) or 'none'}")
    required = [item.name for item in parameters if item.default is item.empty and item.name in named]
    only = [item.name for item in parameters if item.kind is item.POSITIONAL_ONLY and item.default is item.empty]
    missing = [key for key in (*only, *required) if key in only or (key not in given and key not in supplied)]
    if missing:
        raise UsageError(
            f"{name} requires {', '.join(missing)}, which molprof cannot supply",
            hint=f"--processor-arg {missing[0]}=VALUE; molprof supplies {', '.join(supplied)}",
        )


def read_arguments(given: Sequence[str]) -> dict[str, Any]:
    """The values of `KEY=VALUE` texts: JSON where it is JSON, else the text. Raises UsageError for any other text."""
    found: dict[str, Any] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key.isidentifier():
            raise UsageError(f"--processor-arg {text!r} is not KEY=VALUE", hint="e.g. --processor-arg top=5")
        if key in found:
            raise UsageError(f"--processor-arg {key} is given twice", hint="a list is JSON: KEY=[1,2]")
        try:
            found[key] = json.loads(value)
        except (ValueError, RecursionError):
            found[key] = value
    return found
