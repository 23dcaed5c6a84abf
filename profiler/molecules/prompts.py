"""Prompts: molecules, lines of plain text, or JSON lines with texts and chats; and constraints of answers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import MsgspecError, Struct, json

from molprof.common.errors import RunError, UsageError
from molprof.common.files import read_text, refuse_stream
from molprof.common.manifest import Skipped
from molprof.common.settings import CaptureSettings
from molprof.common.text import shortened
from molprof.common.text_format import DEFAULT, TextFormat
from molprof.profiler.molecules.bodies import Body, Kind, constraint_text, read_bodies, text_of
from molprof.profiler.molecules.files import MoleculeEntry, MoleculeFile, molecules_of
from molprof.profiler.molecules.smiles import Molecule, molecule, require_rdkit, split_atoms

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_JSON_LINES = (".jsonl", ".ndjson")
# Keys of requests to servers, and of their messages, which would make other answers.
_OF_REQUESTS = {
    *("tools", "tool_choice", "parallel_tool_calls", "functions", "function_call", "response_format", "json_schema"),
    *("structured_outputs", "structural_tag", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "ebnf"),
    *("model", "temperature", "top_p", "top_k", "min_p", "seed", "n", "best_of", "stop", "logit_bias", "bad_words"),
    *("max_tokens", "max_completion_tokens", "min_tokens", "ignore_eos", "presence_penalty", "frequency_penalty"),
    *("repetition_penalty", "reasoning_effort", "chat_template_kwargs", "extra_body", "vllm_xargs"),
}
_OF_MESSAGES = {"tool_calls", "tool_call_id", "function_call", "name", "reasoning_content", "refusal", "audio"}
_MISSPELT = 0.75  # similarity of names


class Message(Struct, frozen=True):
    """One message of a chat."""

    role: str
    content: str


@dataclass(frozen=True)
class Constraint:
    """A constraint of all answers, or of one."""

    kind: Kind
    text: str  # of choices, each after a comma but the first

    def grammar(self, notation: str) -> str:
        """Return the grammar of choices, else the text."""
        if self.kind != "choices":
            return self.text
        return ("root ::= " if notation == "ebnf" else "start: ") + " | ".join(map(_quoted, self.text.split(",")))


class _PromptLine(Struct, frozen=True):
    """One line of a file of JSON lines."""

    prompt: str | None = None
    messages: tuple[Message, ...] = ()
    schema: dict[str, Any] | None = None
    regex: str | None = None
    choices: list[str] | None = None
    grammar: str | None = None

    def constraints(self) -> list[Constraint]:
        """Return the constraints of the line. Raises UsageError for choices of which one begins another."""
        constraints: list[Constraint] = (
            [] if self.schema is None else [Constraint("schema", json.encode(self.schema).decode())]
        )
        constraints += [] if self.regex is None else [Constraint("regex", self.regex)]
        if self.choices is not None:
            if not self.choices or any("," in text or not text for text in self.choices):
                raise UsageError(f"choices {self.choices} are empty, or have a comma", hint="a list of texts without")
            constraints.append(Constraint("choices", ",".join(self.choices)))
        return constraints + ([] if self.grammar is None else [Constraint("grammar", self.grammar)])


@dataclass(frozen=True)
class Prompt:
    """A prompt of the input."""

    line: int  # line, row or entry of the input, from 1
    name: str  # the molecule's name in the input; empty without one
    text: str
    molecule: Molecule | None  # None for plain text
    messages: tuple[Message, ...] = ()  # of a chat, whose `text` the tokenizer's chat template makes
    constraint: Constraint | None = None  # of its own line
    body: Body | None = None  # of a request


@dataclass(frozen=True)
class Prompts:
    """The readable prompts of an input, or the first of them, and the skipped lines."""

    prompts: tuple[Prompt, ...]
    skipped: tuple[Skipped, ...]
    source: str
    wanted: int | None  # there may be fewer; None: all
    unit: str = "readable molecule"  # what one prompt is, for notes
    times: int = 1  # how often `prompts` repeats each, one after the other

    def notes(self) -> tuple[str, ...]:
        """Return notes on skipped and missing lines."""
        notes = [f"{self.source}, {item.place} {item.line}: {item.problem}; skipped" for item in self.skipped]
        count = len(self.prompts) // self.times
        if self.wanted is not None and count < self.wanted:
            plural = "" if count == 1 else "s"
            notes.append(f"{self.source}: {count} {self.unit}{plural}, {self.wanted} were asked for")
        return tuple(notes)


def read_inputs(settings: CaptureSettings) -> Prompts:
    """Return the prompts of a capture. Raises the errors of `read_prompts` and `read_texts`."""
    if settings.requests is not None:
        prompts = read_requests(Path(settings.requests), settings.count)
    elif settings.prompts is not None:
        prompts = read_texts(Path(settings.prompts), settings.count)
    else:
        prompts = read_prompts(
            None if settings.smiles is None else Path(settings.smiles),
            settings.count,
            settings.strict,
            settings.text_format,
        )
    prompts = repeated(prompts, settings.generations)
    if settings.fill:
        batches = -(-max(len(prompts.prompts), settings.count or 0) // settings.batch_size)
        whole = itertools.islice(itertools.cycle(prompts.prompts), batches * settings.batch_size)
        prompts = replace(prompts, prompts=tuple(whole))
    return prompts


def read_prompts(path: Path | None, count: int | None, strict: bool = False, form: TextFormat = DEFAULT) -> Prompts:
    """Return the first `count` molecules of a file, or of the built-in list; without a count all of them.

    Args:
        path: FILE or FILE:COLUMN (see `files.molecules_of`). None: the built-in molecules.
        strict: raise for a SMILES that RDKit cannot read instead of skipping it.

    Raises:
        UsageError: the file cannot be read or holds no molecule, or `strict` and a SMILES is unreadable, or RDKit,
            which every file needs, is missing.
        RunError: the built-in list is missing from the installation.
    """
    source = "the built-in molecules" if path is None else str(path)
    prompts: list[Prompt] = []
    skipped: list[Skipped] = []
    if path is None:
        molecules = MoleculeFile(
            tuple(MoleculeEntry(number, text, "") for number, text in enumerate(built_in(), start=1)), "line"
        )
    else:
        require_rdkit(f"reading SMILES of {path}")
        molecules = molecules_of(str(path))
    for entry in molecules.entries:
        if len(prompts) == count:
            break
        try:
            if entry.problem is not None:
                raise UsageError(entry.problem)
            # the built-in ones are canonical
            read = molecule(entry.text) if path is not None else split_atoms(entry.text)
        except UsageError as problem:
            if strict:
                hint = "correct it, or leave out --strict"
                raise UsageError(f"{source}, {molecules.unit} {entry.number}: {problem}", hint) from None
            skipped.append(Skipped(entry.number, entry.text, str(problem), molecules.unit))
            continue
        prompts.append(Prompt(entry.number, entry.name, form.prompt_of(read.smiles), read))
    if not prompts:
        why, hint = "has no molecules", "one SMILES per line, optionally followed by a name; or CSV, TSV, JSON, pickle"
        if skipped:
            shown = repr(shortened(skipped[0].text))
            why = f"has no molecule that RDKit can read; {molecules.unit} {skipped[0].line}: {shown}"
        if molecules.unit != "line":
            hint = f"name the column with SMILES: {source.partition(':')[0]}:COLUMN"
        raise UsageError(f"{source} {why}", hint)
    return Prompts(tuple(prompts), tuple(skipped), source, count)


def read_texts(path: Path, count: int | None) -> Prompts:
    """Return the first `count` prompts of plain text, or all, one per line; empty lines are ignored.

    A line of a `.jsonl` or `.ndjson` file is an object with `prompt`, or with the `messages` of a chat, and maybe with
    one of `schema`, `regex`, `choices` and `grammar`.

    Raises UsageError where the file cannot be read or holds no prompt.
    """
    refuse_stream(path)
    # str.splitlines would also end a line at a form feed or U+2028, where no editor does.
    lines = enumerate(read_text(path).removesuffix("\n").split("\n"), start=1)
    read = _json_prompt if path.suffix.lower() in _JSON_LINES else _text_prompt
    prompts = [read(path, number, line) for number, line in lines if line.strip()]
    if not prompts:
        raise UsageError(f"{path} has no prompts", hint="one prompt of plain text per line, or JSON lines")
    return Prompts(tuple(prompts[:count]), (), str(path), count, "prompt")


def read_requests(path: Path, count: int | None) -> Prompts:
    """Return the first `count` requests of a file of bodies of the OpenAI API, or all.

    Raises UsageError as `read_bodies`.
    """
    prompts = tuple(
        Prompt(number, "", text_of(body), None, (), whole_of_body(body), body)
        for number, _, body in read_bodies(path, count)
    )
    return Prompts(prompts, (), str(path), count, "request")


def whole_of_body(body: Body) -> Constraint | None:
    """Return the constraint of an answer to a request, if it can be checked."""
    kind_and_text = constraint_text(body)
    return None if kind_and_text is None else Constraint(*kind_and_text)


def _text_prompt(path: Path, number: int, line: str) -> Prompt:
    return Prompt(number, "", line, None)


def _json_prompt(path: Path, number: int, line: str) -> Prompt:
    hint = 'such as {"prompt": "Hello"} or {"messages": [{"role": "user", "content": "Hello"}]}'
    try:
        prompt = json.decode(line, type=_PromptLine)
    except (MsgspecError, UnicodeEncodeError, RecursionError) as problem:
        raise UsageError(f"{path}, line {number}: {shortened(str(problem))}", hint) from None
    _check_keys(f"{path}, line {number}", json.decode(line))
    if bool(prompt.prompt) == bool(prompt.messages):
        raise UsageError(f"{path}, line {number} has not one of prompt and messages", hint)
    if len(own := prompt.constraints()) > 1:
        raise UsageError(f"{path}, line {number} has {own[0].kind} and {own[1].kind}", "one constraint for each prompt")
    return Prompt(number, "", prompt.prompt or "", None, prompt.messages, own[0] if own else None)


def _check_keys(where: str, line: dict[str, Any]) -> None:
    """Raise UsageError for an unused key that would change the answer, or a misspelt one. Others are the user's.

    A record's number or source changes nothing.
    """
    keys_read = _PromptLine.__struct_fields__
    for key in line:
        if key not in keys_read and (key in _OF_REQUESTS or get_close_matches(key, keys_read, cutoff=_MISSPELT)):
            hint = f"{', '.join(keys_read)}; molprof attach --requests takes requests as they are"
            raise UsageError(f"{where} has {shortened(key)!r}, which is not read", hint)
    for message in line.get("messages") or ():
        if keys := [key for key in message if key in _OF_MESSAGES]:
            hint = "role and content; molprof attach --requests takes requests as they are"
            raise UsageError(f"{where} has a message with {keys[0]!r}, which is not read", hint)


def _quoted(text: str) -> str:
    return json.encode(text).decode()


def with_chats(prompts: Sequence[Prompt], tokenizer: PreTrainedTokenizerFast) -> tuple[Prompt, ...]:
    """Return the prompts, with chats formatted by the tokenizer's chat template, up to the begin of the answer.

    Raises UsageError where the tokenizer has no chat template, or it refuses the messages.
    """
    return tuple(replace(prompt, text=_chat(prompt, tokenizer)) if _is_chat(prompt) else prompt for prompt in prompts)


def _is_chat(prompt: Prompt) -> bool:
    return bool(prompt.messages) or (prompt.body is not None and "messages" in prompt.body)


def _chat(prompt: Prompt, tokenizer: PreTrainedTokenizerFast) -> str:
    if not tokenizer.chat_template:
        hint = "lines with prompt, or a model or --tokenizer with a chat template"
        raise UsageError(f"line {prompt.line} has messages, and the tokenizer has no chat template", hint)
    messages: list[Any] = [{"role": message.role, "content": message.content} for message in prompt.messages]
    more: dict[str, Any] = {}
    try:
        if prompt.body is not None:
            messages, more = list(map(_message, prompt.body["messages"])), prompt.body.get("chat_template_kwargs") or {}
            more = {"tools": prompt.body.get("tools") or None, **more}
        text = str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **more))
    except Exception as problem:  # a template raises anything
        raise UsageError(f"line {prompt.line}: the chat template refuses the messages: {problem}") from problem
    # The tokenizer adds the first token again.
    first = tokenizer.bos_token or ""
    return text.removeprefix(first) if tokenizer("")["input_ids"] == [tokenizer.bos_token_id] else text


def _message(message: Any) -> Any:
    """Return a message of a request as servers give it to templates.

    Texts of its parts joined, arguments as objects.
    """
    joined = dict(message)
    if isinstance(parts := joined.get("content"), list):
        joined["content"] = "\n".join(str(part["text"]) for part in parts)
    if calls := joined.get("tool_calls"):
        joined["tool_calls"] = [{**call, "function": _called(call["function"])} for call in calls]
    return joined


def _called(function: Any) -> Any:
    arguments = function.get("arguments")
    return {**function, "arguments": json.decode(arguments or "{}") if isinstance(arguments, str) else arguments}


def repeated(prompts: Prompts, times: int) -> Prompts:
    """Every prompt `times` times, one after the other."""
    copies = tuple(prompt for prompt in prompts.prompts for _ in range(times))
    return replace(prompts, prompts=copies, times=times)


def short_molecules(count: int) -> list[str]:
    """Return the built-in molecules with the fewest atoms."""
    read = [prompt.molecule for prompt in read_prompts(None, None).prompts]
    ordered = sorted((item for item in read if item is not None), key=lambda item: len(item.atoms))
    return [item.smiles for item in ordered[:count]]


def built_in() -> list[str]:
    """Return the SMILES of the molecules that come with molprof."""
    try:
        return resources.files(__package__).joinpath("molecules.smi").read_text().splitlines()
    except OSError as problem:
        hint = "--smiles FILE, or reinstall molprof"
        raise RunError("the built-in molecules are missing from this installation", hint) from problem
