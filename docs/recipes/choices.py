"""Answers are one of a few texts, in any cut into tokens."""

from molprof.profiler.constraints.table import TableProcessor, TokenTable


def choices(texts, vocabulary):
    whole = [text.encode() for text in texts]
    written = dict.fromkeys(text[:end] for text in whole for end in range(len(text) + 1))
    states = {begun: state for state, begun in enumerate(written)}  # a state for all that may be written so far
    tokens = {token: vocabulary.of(token) for token in vocabulary.made_of(b"".join(whole))}
    edges = [
        {token: states[begun + piece] for token, piece in tokens.items() if begun + piece in states} for begun in states
    ]
    return TokenTable(edges, [states[text] for text in whole])


def build(target, texts):
    table = choices(texts, target.table)
    return TableProcessor("choices", target, lambda rows: [[table] for _ in rows.prompts])
