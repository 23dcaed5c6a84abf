"""Structural tags: their format, as XGrammar has it, and where each token of an answer stands in it.

A token is `forced` where its mask left no other; else `free` where nothing constrains it, as outside of all tags; else
`tag` where it begins in what begins or ends a tag; else `inside` of a schema or grammar.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any

from molprof.common.answer_counts import STOOD
from molprof.profiler.models.target import TokenBytes

Format = dict[str, Any]
_FREE, _TAG, _FORCED, _INSIDE = (STOOD[name] for name in ("free", "tag", "forced", "inside"))
_OPEN, _CLOSE, _ENDS = b"[{", b"]}", b",]} \t\r\n"


def format_of(text: str) -> Format:
    """Return the format of a structural tag; of vLLM's older form (structures, triggers) the same as triggered tags.

    Raises ValueError where it is neither.
    """
    try:
        value = json.loads(text)
        if "structures" not in value:
            return dict(value["format"])
        return {"type": "triggered_tags", "triggers": value["triggers"], "tags": list(map(_tag, value["structures"]))}
    except (LookupError, TypeError, ValueError, RecursionError) as problem:
        raise ValueError(f"no structural tag: {problem}") from problem


def _tag(structure: Format) -> Format:
    schema = structure["schema"]
    content = {"type": "json_schema", "json_schema": json.loads(schema) if isinstance(schema, str) else schema}
    return {"type": "tag", "begin": structure["begin"], "content": content, "end": structure["end"]}


def token_letters(
    tokens: Sequence[int], left: Sequence[int], width: int, table: TokenBytes, form: Format | None = None
) -> str:
    """Return a letter of `STOOD` for each token. left: the tokens that its mask left, of `width`.

    form: that of the structural tag which constrains the answer; None: something else does, or nothing.
    """
    pieces = [table.of(token) for token in tokens]
    if tokens and tokens[-1] in table.special:  # an end token is no text, though it may look like a tag
        pieces[-1] = b""
    text = b"".join(pieces)
    begins = accumulate(map(len, pieces), initial=0)
    spans = [] if form is None else _Spans(text, table.of).of(form)
    where = "".join(letter * (end - begin) for letter, begin, end in spans)

    def letter_of(count: int, begin: int) -> str:
        if count == 1:
            return _FORCED
        if form is not None:
            return where[begin] if begin < len(where) else _FREE
        return _FREE if count >= width else _INSIDE

    return "".join(letter_of(count, begin) for count, begin in zip(left, begins, strict=False))


class _Spans:
    """Finds the parts of a text by the format that it keeps to; a text that was cut ends within one."""

    def __init__(self, text: bytes, piece: Callable[[int], bytes]) -> None:
        self._text, self._piece = text, piece
        self._spans: list[tuple[str, int, int]] = []

    def of(self, form: Format) -> list[tuple[str, int, int]]:
        """Return a letter of `STOOD`, begin and end of each part, in order."""
        self._follow(form, 0, ())
        return self._spans

    def _mark(self, letter: str, begin: int, end: int) -> int:
        end = min(end, len(self._text))
        if end > begin:
            self._spans.append((letter, begin, end))
        return end

    def _literal(self, value: Any) -> bytes:
        """Return the bytes of a text, of a token by its id or text, or of a format of one."""
        if isinstance(value, dict):
            value = value.get("token", "")
        return self._piece(value) if isinstance(value, int) else str(value).encode()

    def _literals(self, value: Any) -> tuple[bytes, ...]:
        return tuple(filter(None, map(self._literal, value if isinstance(value, list) else [value])))

    def _find(self, at: int, stops: Sequence[bytes]) -> int:
        """Return where the first of some texts begins; the end of the text without any."""
        ends = [end for stop in stops if (end := self._text.find(stop, at)) >= 0]
        return min(ends, default=len(self._text))

    def _at(self, at: int, texts: Sequence[bytes]) -> bytes:
        """Return the longest of the texts that stands at an index; empty: none does, or it is cut."""
        return max((text for text in texts if self._text.startswith(text, at)), key=len, default=b"")

    def _follow(self, form: Format, at: int, stops: Sequence[bytes]) -> int:
        """Return where the part ends that begins at an index. stops: texts that may follow it."""
        match form.get("type"):
            case "const_string":
                return self._mark(_TAG, at, at + len(self._literal(form["value"])))
            case "token":
                return self._mark(_TAG, at, at + len(self._literal(form)))
            case "json_schema" if form.get("style", "json") == "json":
                return self._mark(_INSIDE, at, self._json_end(at, stops))
            case "any_text" | "any_tokens" | "exclude_token":
                return self._mark(_FREE, at, self._find(at, stops))
            case "sequence":
                for number, element in enumerate(form["elements"]):
                    at = self._follow(element, at, (*self._begins(form["elements"][number + 1 :]), *stops))
                return at
            case "or":
                return self._follow(self._chosen(form["elements"], at), at, stops)
            case "tag":
                return self._follow_tag(form, at, stops)
            case "triggered_tags" | "token_triggered_tags" | "dispatch" | "token_dispatch":
                return self._triggered(form, at, stops)
            case "tags_with_separator":
                repeated = {"type": "star", "content": {"type": "or", "elements": form["tags"]}}
                return self._repeated(repeated, at, stops, self._literal(form.get("separator", "")))
            case "optional" | "plus" | "star" | "repeat":
                return self._repeated(form, at, stops)
        return self._mark(_INSIDE, at, self._find(at, stops))  # a grammar, a regular expression, a schema as XML

    def _follow_tag(self, tag: Format, at: int, stops: Sequence[bytes]) -> int:
        ends = self._literals(tag["end"])
        at = self._mark(_TAG, at, at + len(self._literal(tag["begin"])))
        at = self._follow(tag["content"], at, ends or stops)
        return self._mark(_TAG, at, at + len(self._at(at, ends) or max(ends, key=len, default=b"")))

    def _triggered(self, form: Format, at: int, stops: Sequence[bytes]) -> int:
        """Free text up to a trigger, and the tag that it begins, over and over."""
        tags = form.get("tags") or [{"begin": rule[0], "content": rule[1], "end": []} for rule in form["rules"]]
        begins = {self._literal(tag["begin"]): tag for tag in tags}
        given = form.get("triggers") or form.get("trigger_tokens")
        triggers = self._literals(given) if given else tuple(begins)
        while at < len(self._text):
            end = self._find(at, (*triggers, *stops))
            at = self._mark(_FREE, at, end)
            if end == len(self._text) or not self._at(at, triggers):
                break
            begin = self._at(at, list(begins))
            if not begin:  # cut within the tag's beginning
                return self._mark(_TAG, at, len(self._text))
            at = self._follow_tag(begins[begin], at, (*triggers, *stops))
            if form.get("stop_after_first") or form.get("loop") is False:
                break
        return at

    def _repeated(self, form: Format, at: int, stops: Sequence[bytes], separator: bytes = b"") -> int:
        content = form["content"]
        begins = self._begins([content])
        while at < len(self._text) and (not begins or self._at(at, begins)):
            before, at = at, self._follow(content, at, (*begins, *stops))
            if at == before or form["type"] == "optional":
                break
            if separator and self._at(at, [separator]):
                at = self._mark(_TAG, at, at + len(separator))
        return at

    def _chosen(self, elements: Sequence[Format], at: int) -> Format:
        """Return the format whose beginning stands at an index; else the first that begins with no fixed text."""
        begins = [self._begins([element]) for element in elements]
        fixed = [element for element, texts in zip(elements, begins, strict=True) if self._at(at, texts)]
        return next(iter([*fixed, *(it for it, texts in zip(elements, begins, strict=True) if not texts), *elements]))

    def _begins(self, elements: Sequence[Format]) -> list[bytes]:
        """Return the texts with which a sequence may begin, up to an element that begins with no fixed text."""
        begins: list[bytes] = []
        for element in elements:
            texts = list(self._of_element(element))
            begins += texts
            if not texts or element.get("type") not in ("optional", "star", "tags_with_separator"):
                break
        return begins

    def _of_element(self, form: Format) -> Iterator[bytes]:
        match form.get("type"):
            case "const_string":
                yield self._literal(form["value"])
            case "token":
                yield self._literal(form)
            case "tag":
                yield self._literal(form["begin"])
            case "sequence":
                yield from self._begins(form["elements"])
            case "or" | "tags_with_separator":
                each = [self._begins([element]) for element in form.get("elements") or form["tags"]]
                yield from (text for texts in each for text in texts if all(each))
            case "optional" | "plus" | "star" | "repeat":
                yield from self._begins([form["content"]])

    def _json_end(self, at: int, stops: Sequence[bytes]) -> int:
        """Return where the JSON value ends that begins at an index; in its texts, nothing ends it."""
        text, depth, quoted = self._text, 0, False
        begin = len(text) - len(text[at:].lstrip())
        index = begin
        while index < len(text):
            byte = text[index]
            if quoted:
                index += byte == ord("\\")
                quoted = byte != ord('"')
            elif byte == ord('"'):
                quoted = True
            elif byte in _OPEN:
                depth += 1
            elif byte in _CLOSE:
                depth -= 1
            elif not depth and (byte in _ENDS or self._at(index, stops)):
                return index
            index += 1
            if not depth and not quoted and byte in b'"]}':
                return index
        return len(text)
