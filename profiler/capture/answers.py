"""Validity of answers: by a JSON schema, a regular expression or a user's check; and repetitive tokens."""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, groupby
from typing import Any

from molprof.common.errors import MissingExtraError, UsageError
from molprof.common.settings import CaptureSettings
from molprof.common.text import shortened
from molprof.profiler.constraints import whole_of
from molprof.profiler.molecules.bodies import Body, constraints_of
from molprof.profiler.molecules.prompts import Constraint, Prompt, whole_of_body

# Of an answer and its prompt: why the answer is not valid, what kind of failure before the first colon; None: valid.
Check = Callable[[str, str], "str | None"]

# An answer ends in a loop where its last tokens are one sequence, of at most this many, over and over.
_LONGEST_LOOP, _LEAST_ROUNDS, _LEAST_LOOPED = 64, 4, 16
# No layout puts so many tokens of white space in a row.
_LEAST_BLANK = 8
# No number has so many digits in a row.
_MOST_DIGITS = 80
_MOST_TEXT = 160


def checks_of(settings: CaptureSettings, constraint: Constraint | None = None) -> list[Check]:
    """Return the checks of an answer, in order; constraint: the one in the prompt's own line.

    Raises UsageError where one cannot be made, and MissingExtraError without the package for schemas.
    """
    return list(_checks(settings, constraint or whole_of(settings)))


def _checks(settings: CaptureSettings, constraint: Constraint | None) -> Iterator[Check]:
    kind, text = (None, "") if constraint is None else (constraint.kind, constraint.text)
    if kind == "schema":
        yield schema_check(text, settings.schema or "the schema of a prompt")
    if kind == "regex" and (matches := matching(text)) is not None:
        yield lambda answer, prompt: None if matches(answer) else "another text than the regular expression"
    if kind == "choices":
        texts = text.split(",")
        yield lambda answer, prompt: None if answer in texts else "none of the choices"
    if settings.check is not None:
        yield _of_user(settings.check)


@dataclass(frozen=True)
class Judge:
    """The checks of answers to a request."""

    checks: Sequence[Check] = ()  # of the text
    # By name of a tool, the check of its arguments; None: it has no schema.
    tools: Mapping[str, Check | None] = field(default_factory=dict)
    must_call: bool = False

    def problem(
        self, text: str, calls: Sequence[tuple[str, str]], prompt: str, cut: bool
    ) -> tuple[bool | None, str | None]:
        """Return an answer's validity, None if nothing judges it, and why not. calls: names and arguments."""
        if not (self.checks or calls or self.must_call):
            return None, None
        problem = None
        if self.must_call and not calls:
            problem = "no tool was called"
        for name, arguments in calls:
            problem = problem or self._of_call(name, arguments)
        if problem is not None and cut:
            problem = f"stopped at the token limit: {problem}"
        if problem is None and not calls:
            problem = problem_of(self.checks, text, prompt, cut)
        return problem is None, problem

    def _of_call(self, name: str, arguments: str) -> str | None:
        if name not in self.tools:
            return f"a broken call: {shortened(name)!r} is no tool of the request"
        check = self.tools[name]
        if check is None:
            try:
                json_value(arguments)
            except (ValueError, RecursionError) as problem:
                return f"a broken call: arguments of {name} are not JSON: {shortened(str(problem))}"
            return None
        why = check(arguments, "")
        return None if why is None else f"a broken call: arguments of {name}: {why}"


def checks_of_prompt(prompt: Prompt, settings: CaptureSettings) -> list[Check]:
    """Return the checks of an answer to a prompt, or to a request.

    Of the whole text, before a server cuts it into calls.
    """
    if prompt.body is None:
        return checks_of(settings, prompt.constraint)
    body = prompt.body
    judge = judge_of(body, settings, f"line {prompt.line}")
    if not judge.must_call:
        return list(judge.checks)
    choice = body["tool_choice"]

    def check(answer: str, prompt: str) -> str | None:
        if isinstance(choice, dict):
            calls = [(choice["function"]["name"], answer)]
        else:  # vLLM has all calls in one array
            try:
                called = json_value(answer)
            except (ValueError, RecursionError) as problem:
                return f"no tool was called: not JSON: {shortened(str(problem), _MOST_TEXT)}"
            if not isinstance(called, list) or not all(isinstance(one, dict) for one in called):
                return "no tool was called"
            calls = [(str(one.get("name")), json.dumps(one.get("parameters"))) for one in called]
        return judge.problem(answer, calls, prompt, False)[1]

    return [check]


def judge_of(body: Body, settings: CaptureSettings, where: str) -> Judge:
    """Return the checks of answers to a request. Raises UsageError where a schema is no JSON schema."""
    names = constraints_of(body)
    tools = {}
    for tool in body.get("tools") or ():
        function = tool.get("function") if isinstance(tool, dict) else None
        if isinstance(function, dict) and "name" in function:
            schema = function.get("parameters")
            name = f"{where}: parameters of {function['name']}"
            tools[str(function["name"])] = None if schema is None else schema_check(json.dumps(schema), name)
    whole = whole_of_body(body)
    checks = checks_of(settings, None if whole is not None and whole.kind == "schema" else whole)
    if whole is not None and whole.kind == "schema":
        checks.insert(0, schema_check(whole.text, where))
    return Judge(checks, tools, "tool_choice" in names)


def matching(pattern: str) -> Callable[[str], object] | None:
    """Return a function that matches a whole text, by Python's `re`, else the package regex; None if neither reads it.

    Engines read others than Python does: whether a pattern is one is theirs to say.
    """
    for name in ("re", "regex"):  # transformers requires the second, which knows such as \\p{L}
        with suppress(ImportError):
            package: Any = importlib.import_module(name)
            with suppress(package.error, OverflowError, RecursionError):
                return package.compile(pattern).fullmatch  # type: ignore[no-any-return]
    return None


def not_judged(constraints: Iterable[Constraint | None]) -> list[str]:
    """Return a line for each regular expression that no answer can be judged by."""
    patterns = {whole.text for whole in constraints if whole is not None and whole.kind == "regex"}
    return [
        f"no answer is judged by the regular expression {shortened(pattern, _MOST_TEXT)!r}: neither Python's re nor"
        " the package regex reads it"
        for pattern in sorted(patterns)
        if matching(pattern) is None
    ]


def problem_of(checks: Sequence[Check], answer: str, prompt: str, cut: bool) -> str | None:
    """Return why an answer is not valid; None if it is. cut: the token limit ended it."""
    problem = next(filter(None, (check(answer, prompt) for check in checks)), None)
    return f"stopped at the token limit: {problem}" if problem is not None and cut else problem


@dataclass(frozen=True)
class SchemaValidator:
    """Two validators of one schema by `jsonschema_rs`: one checks formats such as `date`, one does not."""

    strict: Any
    lenient: Any

    def valid(self, value: Any) -> bool | None:
        """Return True if a value is valid; None if only a format is wrong, which validators and engines may ignore."""
        return True if self.strict.is_valid(value) else None if self.lenient.is_valid(value) else False


def schema_validator(schema: Any, where: str, purpose: str) -> SchemaValidator:
    """Return the validator of a schema, which loads no external reference. Raises UsageError, MissingExtraError."""
    try:
        package = importlib.import_module("jsonschema_rs")
    except ImportError as problem:
        raise MissingExtraError("jsonschema-rs", "schema", purpose) from problem
    try:
        validator = partial(package.validator_cls_for(schema), schema, offline=True)
        return SchemaValidator(validator(validate_formats=True), validator(validate_formats=False))
    except ValueError as problem:
        text = shortened(str(getattr(problem, "message", problem)), _MOST_TEXT)
        raise UsageError(f"{where} is no JSON schema: {text}", "a JSON schema") from None


def json_value(text: str) -> Any:
    """Return the value of a JSON text. Numbers beyond float64 have its limits. Raises ValueError, RecursionError."""
    limit = sys.float_info.max
    return json.loads(text, parse_float=lambda number: max(-limit, min(limit, float(number))), parse_constant=_no_json)


def _no_json(name: str) -> None:
    raise ValueError(f"JSON has no {name}")


def schema_check(text: str, name: str) -> Check:
    """Return the check of answers by a JSON schema; `name` is the schema's name in errors.

    Raises UsageError.
    """
    validator = schema_validator(json.loads(text), name, "--schema").strict

    def check(answer: str, prompt: str) -> str | None:
        try:
            value = json_value(answer)
        except (ValueError, RecursionError) as problem:
            return f"not JSON: {shortened(str(problem), _MOST_TEXT)}"
        try:
            error = next(iter(validator.iter_errors(value)), None)
        except ValueError as problem:  # nested too deep
            return f"not judged: {shortened(str(problem), _MOST_TEXT)}"
        if error is None:
            return None
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.instance_path)
        return f"not of the schema: ${path}: {shortened(error.message, _MOST_TEXT)}"

    return check


def _of_user(name: str) -> Check:
    hint = "package.module:function, a function of the answer, or of answer and prompt"
    module, _, attribute = name.partition(":")
    try:
        function: Any = getattr(importlib.import_module(module), attribute)
        count = len(inspect.signature(function).parameters)
    except Exception as problem:  # a user's module may raise anything
        raise UsageError(f"no check {name!r}: {problem}", hint) from problem
    if count not in (1, 2):
        raise UsageError(f"the check {name!r} has {count} parameters", hint)

    def check(answer: str, prompt: str) -> str | None:
        try:
            verdict = function(*(answer, prompt)[:count])
        except Exception as problem:
            return f"{type(problem).__name__}: {shortened(' '.join(str(problem).split()), _MOST_TEXT)}"
        if isinstance(verdict, str):
            return shortened(verdict, _MOST_TEXT)
        return None if verdict is None or verdict else f"{attribute}: not accepted"

    return check


def led_nowhere(pieces: Sequence[str], cut: bool) -> list[bool]:
    """Return True for tokens of endless white space or digits, and for those of a loop, by their texts.

    A loop is one that only the token limit ended (`cut`); its first round counts as text.
    """
    wasted: list[bool] = []
    for kind, run in groupby(pieces, key=_kind):
        texts = list(run)
        if kind == "digits":  # those after as many as any number has
            wasted += [letters > _MOST_DIGITS for letters in accumulate(map(len, texts))]
        else:
            wasted += [kind == "blank" and len(texts) >= _LEAST_BLANK] * len(texts)
    if cut and (looped := _looped(pieces)):
        wasted[len(pieces) - looped :] = [True] * looped
    return wasted


def cut_otherwise(tokenizer: Any, table: Any, tokens: Sequence[int], eos: Collection[int]) -> str | None:
    """Return a digit per token: 1 where the tokenizer would split the answer's text differently, else 0.

    None if the answer is no whole text of UTF-8.
    """
    text = table.join([token for token in tokens if token not in eos])
    if "\ufffd" in text:
        return None
    token_ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    spans = {*zip(token_ids, accumulate(len(table.of(token)) for token in token_ids), strict=True)}
    end, digits = 0, []
    for token in tokens:
        end += 0 if token in eos else len(table.of(token))
        digits.append("0" if token in eos or (token, end) in spans else "1")
    return "".join(digits)


def _kind(piece: str) -> str | None:
    if piece.isdecimal():
        return "digits"
    return "blank" if piece != "" and not piece.strip() else None


def _looped(pieces: Sequence[str]) -> int:
    """Return how many of the last texts repeat those before them."""
    for period in range(1, min(_LONGEST_LOOP, len(pieces) // _LEAST_ROUNDS) + 1):
        index = len(pieces) - 1
        while index >= period and pieces[index] == pieces[index - period]:
            index -= 1
        count = len(pieces) - 1 - index
        if count + period >= max(_LEAST_LOOPED, _LEAST_ROUNDS * period):
            return count
    return 0
