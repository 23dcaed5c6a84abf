"""Drift of coordinate blocks, by several counting rules, and disagreement: what the model would have written."""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.trace_processor.package import Query, query_rows
from molprof.common.manifest import SequenceRun
from molprof.common.text_format import DEFAULT, TextFormat
from molprof.common.values import per

# Columns in the order of Block's and Token's fields.
_BLOCKS = Query(
    "drift",
    "SELECT sequence, block, text, junk, filler, needed, drift, junk_position, marked_text, surplus_text"
    " FROM molprof_block ORDER BY sequence, block",
)
_TOKENS = Query(
    "disagreement",
    "SELECT sequence, position, text, kind, choice, probability, rank, forbidden, removed, unlike"
    " FROM molprof_token_disagreement ORDER BY sequence, position",
)
EXAMPLES = 10
GOOD = "good"
# What a block is, the first that holds. A block has drift if it is not good: junk begins after x,y,z, so text that
# never reads x,y,z has no junk, and counting junk alone would call it good.
STATES = ("junk", "cut", "malformed", "filler", GOOD)
BINS = 20
WORST = 10
CHOICES = ("copy", "free", "open")

# The smallest float64 above 0: the most that a recorded 0 can have been.
_LEAST = math.ulp(0.0)
# A token of several characters is of the first kind here that it holds: `=[` is a bond, `>=[` is `close`, for it ends a
# coordinate. `mark` is a comma, point or minus of a coordinate; `ring` a ring digit or a parenthesis.
TEXTS = ("tag", "close", "element", "bond", "ring", "digit", "mark", "other", "bracket")
# The same of answers to prompts of plain text, which hold no molecules.
PLAIN = ("word", "digit", "sign", "space")
_END = "end"

_SPECIAL = re.compile(r"<\|[^<>]*\|>|</?s>")
# Characters outside brackets, and inside a coordinate.
_OUTSIDE = dict.fromkeys("-=#:$/\\.~", "bond") | dict.fromkeys("0123456789%()", "ring")
_COORDINATE = dict.fromkeys("0123456789", "digit") | dict.fromkeys(".-", "mark")


class RuleCount(Struct, frozen=True):
    """Coordinate blocks that one counting rule calls junk."""

    rule: str
    meaning: str  # what the rule counts
    blocks: int
    block_ratio: float  # of all blocks
    molecules: int  # sequences with at least one such block
    molecule_ratio: float  # of all sequences with blocks


class JunkExample(Struct, frozen=True):
    """A block with junk."""

    sequence: int
    block: int
    position: int  # of the first junk token
    text: str  # the block, every run of junk and filler tokens between bars
    surplus: str  # text of those tokens alone
    blocks: int  # blocks of the run with this surplus, of which this is the first


class Drift(Struct, frozen=True):
    """Drift of a run's coordinate blocks: FREE positions given minus tokens needed."""

    known_blocks: int  # blocks whose drift is known; 0 without a template
    too_short_blocks: int  # drift below 0
    exact_blocks: int
    too_long_blocks: int  # drift above 0
    mean_drift_tokens: float | None  # None: no drift is known
    mean_needed_tokens: float | None  # over blocks where it is known
    junk_rules: tuple[RuleCount, ...]
    junk_examples: tuple[JunkExample, ...]  # at most ten, the most frequent junk first
    states: dict[str, int] | None = None  # blocks by `STATES`; None in a report that was stored without

    @property
    def drift_blocks(self) -> int | None:
        """Number of blocks that are not good."""
        return None if self.states is None else sum(self.states.values()) - self.states.get("good", 0)

    @property
    def drift_block_ratio(self) -> float | None:
        """Share of the blocks that are not good."""
        return per(self.drift_blocks, sum((self.states or {}).values()))


class Agreement(Struct, frozen=True):
    """Probability and rank that the model gave some tokens before the masks."""

    tokens: int
    mean_probability: float
    median_probability: float
    first_choice_ratio: float  # tokens that were the model's first choice
    forbidden_ratio: float  # tokens where the model's first choice was forbidden
    mean_surprisal_bits: float  # -log2 of the probability; 0 counts as the smallest float64, 1,074 bits
    mean_removed: float | None = None  # probability of all tokens that were forbidden; None: not recorded
    unlike_ratio: float | None = None  # tokens where the tokenizer cuts the text otherwise; None: not recorded


class AgreementGroup(Struct, frozen=True):
    """Agreement of the model with the masks for a choice and a kind of text."""

    choice: str  # copy, free, open
    text: str | None  # kind of text, of `TEXTS`, or of `PLAIN` and `end`; None: all kinds
    agreement: Agreement


class AgreementBin(Struct, frozen=True):
    """Agreement of the model with the masks in a part of the sequence."""

    from_ratio: float  # of the position over the sequence's length
    to_ratio: float  # not in it
    agreement: Agreement


class WorstPlace(Struct, frozen=True):
    """A token to which the model gave a low probability."""

    sequence: int
    position: int
    choice: str
    before: str  # the text before it
    text: str
    after: str
    probability: float
    rank: int
    forbidden: bool


class ModelDisagreement(Struct, frozen=True):
    """The model's own choices, as an untimed pass recorded them."""

    molecules: int  # sequences with a record; none where the pass wrote other text
    all: Agreement
    groups: tuple[AgreementGroup, ...]  # by choice, all kinds of text first
    bins: tuple[AgreementBin, ...]  # 20 of relative position, without empty ones
    worst: tuple[WorstPlace, ...]  # lowest probability first


class DriftBlock(Struct, frozen=True):
    """A row of molprof_block."""

    sequence: int
    block: int
    text: str
    junk: int
    filler: int
    needed: int | None
    drift: int | None
    junk_position: int | None
    marked_text: str
    surplus_text: str
    cut: bool = False  # the answer ended in it, at the limit on tokens

    def malformed(self, form: TextFormat) -> bool:
        """Return True if no prefix reads x,y,z."""
        return not form.triple.match(self.text)

    def state(self, form: TextFormat) -> str:
        """Return the first of `STATES` that holds for the block."""
        holds = {"junk": self.junk, "cut": self.cut, "malformed": self.malformed(form), "filler": self.filler}
        return next((state for state in STATES if holds.get(state)), GOOD)


def _not_floats(block: DriftBlock, form: TextFormat) -> bool:
    # float() also reads 1, 1e5, nan and spaces.
    try:
        return len(list(map(float, block.text.split(form.separator)))) != 3
    except ValueError:
        return True


def _nonnumeric(block: DriftBlock, form: TextFormat) -> str:
    return block.text.replace(form.separator, "").strip("-.0123456789")


# Ways to count: what each counts, and whether it counts a block.
RULES: Mapping[str, tuple[str, Callable[[DriftBlock, TextFormat], object]]] = {
    "drift": ("junk, filler, cut or malformed: not good", lambda block, form: block.state(form) != GOOD),
    "strict": ("a token after the numbers x,y,z", lambda block, _: block.junk),
    "surplus": ("junk, or digits beyond the precision", lambda block, _: block.junk + block.filler),
    "letters": ("a letter of any script in the block", lambda block, _: any(map(str.isalpha, block.text))),
    "latin_letters": ("a letter A to Z or a to z in the block", lambda block, _: re.search("[A-Za-z]", block.text)),
    "any_nonnumeric": ("other than digits, points, commas, minus", _nonnumeric),
    "not_two_commas": ("more or fewer commas than two", lambda block, form: block.text.count(form.separator) != 2),
    "not_floats": ("not three texts that float() reads", _not_floats),
    "malformed": ("no prefix reads x,y,z", lambda block, form: block.malformed(form)),
    "not_exact": ("anything but exactly x,y,z", lambda block, form: not form.triple.fullmatch(block.text)),
}


def read_drift(engine: TraceProcessor, molecules: Sequence[SequenceRun], form: TextFormat = DEFAULT) -> Drift:
    """Return the drift of a run's coordinate blocks."""
    blocks = [DriftBlock(*row) for row in query_rows(engine, _BLOCKS)[1]]
    last = {block.sequence: block.block for block in blocks}
    # A block is open at the end of an answer without an end token.
    cut = {
        (molecule.sequence, last.get(molecule.sequence))
        for molecule in molecules
        if not molecule.kinds.endswith("e")
        and molecule.text.rfind(form.block_open) > molecule.text.rfind(form.block_close)
    }
    return drift_figures([replace(block, cut=(block.sequence, block.block) in cut) for block in blocks], form)


def drift_figures(blocks: list[DriftBlock], form: TextFormat = DEFAULT) -> Drift:
    """Return the figures of blocks that are sorted by sequence and block.

    For `commas` in a rule, the format's separator.
    """
    states = Counter(block.state(form) for block in blocks)
    drifts = [block.drift for block in blocks if block.drift is not None]
    needed = [block.needed for block in blocks if block.needed is not None]
    return Drift(
        known_blocks=len(drifts),
        too_short_blocks=sum(drift < 0 for drift in drifts),
        exact_blocks=sum(drift == 0 for drift in drifts),
        too_long_blocks=sum(drift > 0 for drift in drifts),
        mean_drift_tokens=per(sum(drifts), len(drifts)),
        mean_needed_tokens=per(sum(needed), len(needed)),
        junk_rules=tuple(_counts(blocks, form)) if blocks else (),
        junk_examples=tuple(_examples(blocks)),
        states={state: states[state] for state in STATES},
    )


def _counts(blocks: list[DriftBlock], form: TextFormat) -> Iterator[RuleCount]:
    molecules = len({block.sequence for block in blocks})
    for name, (meaning, counts) in RULES.items():
        broken = [block.sequence for block in blocks if counts(block, form)]
        touched = len(set(broken))
        meaning = meaning if form.separator == "," else meaning.replace("commas", "separators")
        yield RuleCount(name, meaning, len(broken), len(broken) / len(blocks), touched, touched / molecules)


def _examples(blocks: list[DriftBlock]) -> Iterator[JunkExample]:
    """Yield the first block of each of the most frequent junk texts.

    Of equally frequent ones the earliest come first.
    """
    with_junk = [block for block in blocks if block.junk_position is not None]
    first = {block.surplus_text: block for block in reversed(with_junk)}
    for text, count in Counter(block.surplus_text for block in with_junk).most_common(EXAMPLES):
        block = first[text]
        assert block.junk_position is not None
        yield JunkExample(block.sequence, block.block, block.junk_position, block.marked_text, text, count)


class Token(Struct, frozen=True):
    """A row of molprof_token_disagreement; `kind` is eos or by the text, `forbidden` 1 or 0."""

    sequence: int
    position: int
    text: str
    kind: str
    choice: str
    probability: float
    rank: int
    forbidden: int
    removed: float | None = None
    unlike: int | None = None


def read_disagreement(engine: TraceProcessor, form: TextFormat | None) -> ModelDisagreement | None:
    """Return the model's own choices; None where no pass recorded them."""
    return disagreement_figures([Token(*row) for row in query_rows(engine, _TOKENS)[1]], form)


def disagreement_figures(tokens: Sequence[Token], form: TextFormat | None = DEFAULT) -> ModelDisagreement | None:
    """Return the figures of tokens that are sorted by sequence and position; None without any.

    Args:
        form: how molecules are written; None: the tokens are of plain text.
    """
    if not tokens:
        return None
    sequences = [list(group) for _, group in itertools.groupby(tokens, key=lambda token: token.sequence)]
    groups: defaultdict[tuple[str, str | None], list[Token]] = defaultdict(list)
    bins: defaultdict[int, list[Token]] = defaultdict(list)
    for sequence in sequences:
        words = [token.text for token in sequence]
        kinds = [*map(_plain_kind, words)] if form is None else text_kinds(words, form)
        end = _END if form is None else "tag"
        for index, (token, kind) in enumerate(zip(sequence, kinds, strict=True)):
            groups[token.choice, None].append(token)
            groups[token.choice, end if token.kind == "eos" else kind].append(token)
            bins[index * BINS // len(sequence)].append(token)
    return ModelDisagreement(
        molecules=len(sequences),
        all=agreement(tokens),
        groups=tuple(
            AgreementGroup(*group, agreement(groups[group]))
            for group in itertools.product(CHOICES, (None, *(TEXTS if form else (*PLAIN, _END))))
            if group in groups
        ),
        bins=tuple(AgreementBin(index / BINS, (index + 1) / BINS, agreement(bins[index])) for index in sorted(bins)),
        worst=tuple(_worst(tokens, sequences)),
    )


def _plain_kind(word: str) -> str:
    """Return the first of `PLAIN` that a token contains; bytes that are no whole character are a word.

    Traces have pictures in place of tabs and line breaks.
    """
    tests = (
        lambda one: one.isalpha() or one == "\ufffd",
        str.isdecimal,
        lambda one: not (one.isspace() or "\u2409" <= one <= "\u240d"),
    )
    return next((kind for kind, test in zip(PLAIN, tests, strict=False) if any(map(test, word))), PLAIN[-1])


def agreement(tokens: Sequence[Token]) -> Agreement:
    """Return the figures of at least one token."""
    probabilities = [token.probability for token in tokens]
    return Agreement(
        tokens=len(tokens),
        mean_probability=statistics.fmean(probabilities),
        median_probability=statistics.median(probabilities),
        first_choice_ratio=sum(token.rank == 0 for token in tokens) / len(tokens),
        forbidden_ratio=sum(token.forbidden for token in tokens) / len(tokens),
        # + 0.0: the surprisal of certainty is 0, not -0.
        mean_surprisal_bits=-statistics.fmean(math.log2(max(value, _LEAST)) for value in probabilities) + 0.0,
        mean_removed=_mean([token.removed for token in tokens]),
        unlike_ratio=_mean([token.unlike for token in tokens]),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean; None if any value is not recorded."""
    recorded = [value for value in values if value is not None]
    return statistics.fmean(recorded) if len(recorded) == len(values) else None


def _worst(tokens: Sequence[Token], sequences: Sequence[Sequence[Token]]) -> Iterator[WorstPlace]:
    words = {group[0].sequence: (group[0].position, [token.text for token in group]) for group in sequences}
    for token in sorted(tokens, key=lambda token: (token.probability, token.sequence, token.position))[:WORST]:
        first, texts = words[token.sequence]
        index = token.position - first
        before = "".join(texts[:index])[-24:]
        after = "".join(texts[index + 1 :])[:8]
        yield WorstPlace(
            token.sequence, token.position, token.choice, before, token.text, after, token.probability, token.rank,
            bool(token.forbidden),
        )  # fmt: skip


def text_kinds(words: Sequence[str], form: TextFormat = DEFAULT) -> list[str]:
    """Return one of `TEXTS` for each token of a sequence, by its context.

    A minus is a bond between atoms, part of the element in `[O-]`, and a mark in a coordinate. words: the tokens' texts
    in order; special tokens read `<|...|>`.
    """
    text = "".join(words)
    kinds = _characters(words, form)
    for match in re.finditer("|".join(map(re.escape, form.tags)), text) if form.tags else ():
        kinds[match.start() : match.end()] = ["tag"] * len(match.group())
    kinds_of_words, begin = [], 0
    for word in words:
        held = set(kinds[begin : begin + len(word)])
        kinds_of_words.append(next((kind for kind in TEXTS if kind in held), "other"))
        begin += len(word)
    return kinds_of_words


def _characters(words: Sequence[str], form: TextFormat) -> list[str]:
    """Return the kind of each character, without tags."""
    # A special token is no text: neither opens a block nor continues one.
    around = form.block_open, form.block_close
    special = [_SPECIAL.fullmatch(word) is not None and word not in around for word in words]
    text = "".join("\0" * len(word) if skipped else word for word, skipped in zip(words, special, strict=True))
    coordinate = _COORDINATE | dict.fromkeys(form.separator, "mark")
    kinds: list[str] = []
    inside = ""  # what is open: a block, a bracket or nothing
    while len(kinds) < len(text):
        at = len(kinds)
        character = text[at]
        if text.startswith(form.block_close, at) and (inside == "block" or form.block_close[:1] not in "[]"):
            kinds.extend(["close"] * len(form.block_close))
            inside = ""
        elif text.startswith(form.block_open, at):
            kinds.extend(["bracket"] * len(form.block_open))
            inside = "block"
        elif character == "\0":
            kinds.append("tag")
        elif character in "[]" and (inside != "block" or character in form.marks):
            kinds.append("bracket")
            inside = "atom" if character == "[" else ""
        elif inside == "block":
            kinds.append(coordinate.get(character, "other"))
        elif inside == "atom":
            kinds.append("element")
        else:
            kinds.append(_OUTSIDE.get(character, "element" if character.isalpha() else "other"))
    return kinds
