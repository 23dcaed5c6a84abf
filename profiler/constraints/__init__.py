"""The logits processors of molprof by name. Imports no torch."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import MsgspecError, json

from molprof.common.engine_settings import TABLE, VLLM
from molprof.common.errors import UsageError
from molprof.common.files import read_text, refuse_stream
from molprof.common.settings import WHOLE_TEXT, CaptureSettings
from molprof.profiler.molecules.prompts import Constraint

if TYPE_CHECKING:
    from molprof.profiler.constraints.base import Processor
    from molprof.profiler.models.target import ProcessorTarget


@dataclass(frozen=True)
class ProcessorEntry:
    """Module and factory of a processor in this package, and its description."""

    path: str
    summary: str
    molecules: bool = True  # whether it keeps to a molecule's template or grammar


PROCESSORS = {
    "generic": ProcessorEntry("rows:Generic", "position template; FREE blocks brackets and controls; any tokenizer"),
    "qwen": ProcessorEntry("rows:Qwen", "position template; FREE allows number tokens only; single-digit tokenizers"),
    "vectorized": ProcessorEntry("vectorized:Vectorized", "masks of generic or qwen, prepared before the first step"),
    "placeholder": ProcessorEntry(
        "vectorized:FittedPlaceholder", "vectorized, its placeholder fitted to the tokenizer"
    ),
    "truncate": ProcessorEntry("molecules:Truncate", "position template; a coordinate ends where the model closes it"),
    "grammar": ProcessorEntry(
        "molecules:Grammar", "three decimal numbers per coordinate, in the tokenizer's own tokens"
    ),
    "xgrammar": ProcessorEntry(
        "molecules:xgrammar", "--schema and the like, else as grammar, by XGrammar (molprof[xgrammar])"
    ),
    "llguidance": ProcessorEntry(
        "molecules:llguidance", "--schema and the like, else as grammar, by llguidance (molprof[llguidance])"
    ),
    "outlines": ProcessorEntry(
        "engines:Outlines", "--schema, --regex and --choices, by outlines-core", molecules=False
    ),
    "lm-format-enforcer": ProcessorEntry(
        "engines:LMFormatEnforcer", "--schema, --regex and --choices, by the package of this name", molecules=False
    ),
    "table": ProcessorEntry(
        "constraint:table", "--schema, --regex and --choices, as an automaton over tokens", molecules=False
    ),
}
OF_MOLECULES = tuple(name for name, entry in PROCESSORS.items() if entry.molecules)


def make_processor(name: str, target: ProcessorTarget, arguments: Sequence[str] = ()) -> Processor:
    """Return the processor of a name or of a `package.module:builder`.

    Args:
        arguments: `KEY=VALUE` texts for parameters of a user's builder.

    Raises:
        UsageError: no such processor, or it cannot work with the tokenizer.
    """
    factory = find_factory(name)
    if name in PROCESSORS:
        processor: Processor = factory(target)
        return processor
    from molprof.profiler.constraints.own import PASSED_ON, RAISED, UserProcessor, told

    try:
        return UserProcessor(name, factory, target, arguments)
    except PASSED_ON:
        raise
    except RAISED as problem:
        hint = "what a builder gets and returns: docs/constraints.md"
        raise UsageError(f"{name} cannot make a processor: {told(problem, name)}", hint=hint) from problem


def processor_of(settings: CaptureSettings, target: ProcessorTarget) -> Processor | None:
    """Return the processor of the settings; None without one, and where vLLM makes masks itself.

    Raises what `make_processor` raises.
    """
    name = settings.processor
    if settings.engine_name == VLLM:
        return None
    if name in WHOLE_TEXT and (whole := whole_of(settings)) is not None:
        from molprof.profiler.constraints.constraint import table
        from molprof.profiler.constraints.engines import ENGINES

        return table(target, whole) if name == TABLE else ENGINES[name](target, whole)
    return None if name is None else make_processor(name, target, settings.processor_args)


def check_table(target: ProcessorTarget, whole: Constraint) -> None:
    """Raise UsageError for a constraint that has no table; a table that is made is kept."""
    from molprof.profiler.constraints.automaton import NoText, TooLarge
    from molprof.profiler.constraints.constraint import make_table
    from molprof.profiler.constraints.regular import NotRegular

    try:
        make_table(target, whole)
    except (NotRegular, TooLarge, NoText) as problem:
        raise UsageError(f"no table is made: {problem}") from problem


def without_model(settings: CaptureSettings) -> Any:
    """Return the factory of molprof's own processor of the settings, with the processor's attributes.

    A user's own tells nothing before it is made, and what keeps to a whole text has attributes of its own: these are
    `object`. None without a processor.
    """
    name = settings.processor
    if name not in OF_MOLECULES or (name in WHOLE_TEXT and whole_of(settings) is not None):
        return None if name is None else object
    return find_factory(name)


def whole_of(settings: CaptureSettings) -> Constraint | None:
    """Return the constraint of all answers; None without one. Raises UsageError for an unusable file."""
    if settings.schema is not None:
        return Constraint("schema", read_schema(settings.schema))
    if settings.grammar_file is not None:
        refuse_stream(Path(settings.grammar_file))
        return Constraint("grammar", read_text(Path(settings.grammar_file)))
    if settings.choices is not None:
        return Constraint("choices", settings.choices)
    return None if settings.regex is None else Constraint("regex", settings.regex)


def read_schema(path: str) -> str:
    """Return the text of a JSON schema. Raises UsageError for a file that is none."""
    refuse_stream(Path(path))
    text = read_text(Path(path))
    try:
        content = json.decode(text)
    except (MsgspecError, UnicodeEncodeError, RecursionError) as problem:
        raise UsageError(f"{path} is no JSON schema: {problem}", hint="a JSON object") from None
    if not isinstance(content, dict):
        raise UsageError(f"{path} is no JSON schema: it holds no object", hint="a JSON object")
    return text


# Processors that need a package: what Python imports it as, and what pip installs.
_PACKAGES = {
    "xgrammar": ("xgrammar", "xgrammar"), "llguidance": ("llguidance", "llguidance"),
    "outlines": ("outlines_core", "outlines-core"), "lm-format-enforcer": ("lmformatenforcer", "lm-format-enforcer"),
}  # fmt: skip


def missing_engines() -> dict[str, str]:
    """Return the processors whose package is not installed, and each one's name for pip."""
    return {name: package for name, (module, package) in _PACKAGES.items() if find_spec(module) is None}


def find_factory(name: str) -> Any:
    """Return the factory of a name, or the builder `package.module:builder`. Raises UsageError if it is missing."""
    path = f"{__name__}.{PROCESSORS[name].path}" if name in PROCESSORS else name
    module, colon, attribute = path.partition(":")
    hint = f"use one of {', '.join(PROCESSORS)}, or package.module:builder"
    if not (module and colon and attribute):
        raise UsageError(f"no processor {name!r}", hint=hint)
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as problem:
        if isinstance(problem, ModuleNotFoundError) and problem.name == module.partition(".")[0]:
            hint += f"; set PYTHONPATH to the folder of {problem.name}.py or of the package {problem.name}"
        raise UsageError(f"no processor {name!r}: {problem}", hint=hint) from problem
    except (Exception, SystemExit) as problem:  # a user's module may raise anything
        from molprof.profiler.constraints.own import told

        raise UsageError(f"the module of {name!r} cannot be imported: {told(problem, path)}") from problem


def check_processor(name: str, arguments: Sequence[str] = ()) -> None:
    """Raise the UsageErrors of `make_processor` that need no model."""
    factory = find_factory(name)
    if name not in PROCESSORS:
        from molprof.profiler.constraints.own import check_call

        check_call(name, factory, arguments)
