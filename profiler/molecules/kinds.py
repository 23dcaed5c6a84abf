"""The kind of each generated token (free, copy, junk, filler, eos), and the validity of the conformer.

The text alone decides, so that constrained and unconstrained runs are counted by the same rule.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from molprof.common.errors import MissingExtraError
from molprof.common.text_format import DEFAULT, TextFormat
from molprof.profiler.models.target import TokenBytes
from molprof.profiler.molecules.smiles import (
    COORDINATE_DECIMALS,
    Molecule,
    require_rdkit,
    smiles_of_conformer,
)

_FRACTION = re.compile(rb"\.([0-9]+)")


@dataclass(frozen=True)
class Classified:
    """The tokens of one generated sequence."""

    kinds: str  # one letter per token: f(ree) c(opy) j(unk) l(filler) e(os)
    blocks: list[int]  # coordinate block of each token, -1 outside
    malformed_blocks: int  # blocks that do not begin with three decimal numbers
    cut_blocks: int  # those of them, 0 or 1, in which the bound on new tokens ends the text
    text: str  # without the end token
    insides: tuple[str | None, ...] = ()  # what each block holds; None if nothing closes it


@dataclass(frozen=True)
class _ByteSpan:
    """One coordinate block as byte offsets."""

    start: int
    end: int
    good: int | None  # where its `x,y,z` prefix ends; None: malformed
    filler: tuple[tuple[int, int], ...]  # spans of digits beyond the format's precision


def classify(tokens: Sequence[int], table: TokenBytes, eos: frozenset[int], form: TextFormat = DEFAULT) -> Classified:
    """Return kind and block of each token.

    *junk*: begins in a block after the longest prefix that reads `x,y,z`. *filler*: begins with a digit beyond
    `COORDINATE_DECIMALS`. *free*: lies inside a block. *copy*: any other. A block without such a prefix (malformed) has
    no junk. Only the last token may be one of `eos`.
    """
    ended = bool(tokens) and tokens[-1] in eos
    body = tokens[:-1] if ended else tokens
    pieces = [table.of(token) for token in body]
    # Special tokens such as <|im_start|> are no coordinate blocks: they keep their length, not their brackets.
    around = (form.block_open.encode(), form.block_close.encode())
    scanned = form.blanked(
        b"".join(
            bytes(len(piece)) if token in table.special and piece not in around else piece
            for token, piece in zip(body, pieces, strict=True)
        )
    )
    # A block ends where it is closed, where another one opens, or where the text ends.
    blocks_of, triple = (re.compile(item.pattern.encode()) for item in (form.open_block, form.triple))
    spans = [_span(match, triple) for match in blocks_of.finditer(scanned)]
    starts = [span.start for span in spans]
    kinds, blocks, begin = "", [], 0
    for piece in pieces:
        end = begin + len(piece)
        index = bisect_right(starts, begin) - 1
        inside = index >= 0 and begin < spans[index].end
        kinds += _kind(begin, end, spans[index]) if inside else "c"
        blocks.append(index if kinds[-1] != "c" else -1)
        begin = end
    if ended:
        kinds += "e"
        blocks.append(-1)
    text = b"".join(pieces).decode("utf-8", errors="replace")
    malformed = [span for span in spans if span.good is None]
    cut = sum(span.end == len(scanned) and not ended for span in malformed)
    insides = tuple(
        scanned[span.start : span.end].decode("utf-8", errors="replace")
        if scanned.startswith(around[1], span.end)
        else None
        for span in spans
    )
    return Classified(kinds, blocks, len(malformed), cut, text, insides)


def _span(match: re.Match[bytes], triple: re.Pattern[bytes]) -> _ByteSpan:
    start, end = match.span(1)
    prefix = triple.match(match.string, start, end)
    digits = (item.span(1) for item in _FRACTION.finditer(match.string, start, end))
    filler = tuple((first + COORDINATE_DECIMALS, last) for first, last in digits if last - first > COORDINATE_DECIMALS)
    return _ByteSpan(start, end, None if prefix is None else prefix.end(), filler)


def _kind(begin: int, end: int, span: _ByteSpan) -> str:
    """Return the kind of a token that begins inside a block."""
    if span.good is not None and begin >= span.good:
        return "j"
    if end > span.end:
        return "c"
    return "l" if any(first <= begin < last for first, last in span.filler) else "f"


def check(text: str, molecule: Molecule, form: TextFormat = DEFAULT) -> str | None:
    """Return why a generated text is not a valid conformer of the molecule; None if it is valid.

    Valid: the tags enclose a skeleton with one block per atom, the molecular graph that RDKit reads is the prompt's,
    and each block reads exactly `x,y,z`. Checked in this order. Raises MissingExtraError where the skeleton is written
    otherwise than the prompt's, and RDKit is not installed.
    """
    if len(text) < len(form.answer_of("")) or not (text.startswith(form.opening) and text.endswith(form.closing)):
        return f"no {form.opening}...{form.closing} around the whole text"
    body = text[len(form.opening) : len(text) - len(form.closing)]
    if form.structure.fullmatch(body) is None:
        return "not a skeleton with one coordinate block after each atom"
    # The same text is the same molecule, which needs no RDKit.
    skeleton = molecule.skeleton("", form)
    if form.without_blocks(body) != form.without_blocks(skeleton):
        require_rdkit("comparing molecules")
        written = smiles_of_conformer(body, form)
        if written is None:
            return "RDKit cannot read the skeleton"
        # RDKit's canonical SMILES of a canonical SMILES is, rarely, another string.
        if written not in (molecule.smiles, smiles_of_conformer(skeleton, form)):
            return f"another molecule: {written}"
    inside = [match.group(3) for match in form.atom_block.finditer(body)]
    if len(inside) != len(molecule.atoms):
        return f"{len(inside)} coordinate blocks for {len(molecule.atoms)} atoms"
    malformed = [block for block in inside if form.triple.match(block) is None]
    if malformed:
        return f"{len(malformed)} of {len(inside)} blocks malformed: {_shown(malformed[0], form)}"
    junk = [block for block in inside if form.triple.fullmatch(block) is None]
    return f"{len(junk)} of {len(inside)} blocks end in junk: {_shown(junk[0], form)}" if junk else None


def _shown(inside: str, form: TextFormat) -> str:
    return f"{form.block_open}{inside}{form.block_close}"


def judge(text: str, molecule: Molecule, kinds: str, form: TextFormat = DEFAULT) -> tuple[bool | None, str | None]:
    """Return `valid` and `problem` of a `SequenceRun` with this text and these kinds.

    Both are None if RDKit was missing.
    """
    try:
        problem = check(text, molecule, form)
    except MissingExtraError:
        return None, None
    if problem is not None and not kinds.endswith("e"):
        problem = f"cut off after {len(kinds)} tokens: {problem}"
    return problem is None, problem
