"""Each forward gets the right tokens: exact chunks of literal rows."""

from __future__ import annotations

import numpy as np

from molprof.profiler.engines.schedule import CHOSEN, COMPILED_WIDTHS, RUN_LIMIT, Chunk, Rules, Schedule

END, PAD, TRASH = 99, 0, 50
# Row 0: forced 1 2, a choice, forced 3 4, a choice, the end. Row 1: a choice, forced 5 and the end.
RUNS = {0: {0: [1, 2], 3: [3, 4], 6: [END]}, 1: {1: [5, END]}}
PROMPTS = [[7, 8], [9]]


def forced(row: int, position: int, chosen: int | None) -> list[int]:
    return RUNS[row].get(position, [])


def schedule(bound: int = 20, **options: object) -> Schedule:
    return Schedule(PROMPTS, forced, Rules(frozenset({END}), bound, TRASH, PAD, **options))  # type: ignore[arg-type]


def shown(chunk: Chunk | None) -> tuple[list[list[int]], list[list[int]], list[list[int]], list[int], int]:
    assert chunk is not None
    parts = (chunk.tokens, chunk.columns, chunk.positions)
    tokens, columns, positions = (part.tolist() for part in parts)
    return tokens, columns, positions, chunk.places.tolist(), chunk.used


def test_a_step_feeds_what_was_chosen_and_the_run_after_it() -> None:
    rows = schedule()
    first = shown(rows.first())
    assert first == (
        [[7, 8, 1, 2], [0, 0, 0, 9]],
        [[0, 1, 2, 3], [TRASH] * 3 + [0]],
        [[0, 1, 2, 3], [0] * 4],
        [2, 0],
        4,
    )
    # Row 1 ends with its choice and what is forced after it, which nobody needs to be fed.
    second = shown(rows.next(None))
    assert second == ([[CHOSEN, 3, 4], [0, 0, 0]], [[4, 5, 6], [TRASH] * 3], [[4, 5, 6], [0] * 3], [5, 3], 7)
    assert rows.next(None) is None
    assert rows.answers == [[1, 2, CHOSEN, 3, 4, CHOSEN, END], [CHOSEN, 5, END]]
    assert rows.appended == [[5, 2], [3]]
    rows.fill(0, [11, 21])
    rows.fill(1, [12, 22])
    assert rows.answers == [[1, 2, 11, 3, 4, 12, END], [21, 5, END]]


def test_a_chosen_end_token_ends_a_row() -> None:
    rows = schedule()
    rows.first()
    rows.next([END, END])
    assert (rows.answers, rows.appended) == ([[1, 2, END], [END]], [[3], [1]])


def test_without_jumps_each_step_appends_one_token() -> None:
    rows = schedule(jump=False)
    chunks = [rows.first()]
    while (chunk := rows.next(None)) is not None:
        chunks.append(chunk)
    assert [chunk.tokens.tolist() for chunk in chunks] == [
        [[7, 8], [0, 9]], [[1], [CHOSEN]], [[2], [5]], [[CHOSEN], [0]], [[3], [0]], [[4], [0]], [[CHOSEN], [0]],
    ]  # fmt: skip
    assert rows.appended == [[1] * 7, [1] * 3]


def test_the_bound_cuts_runs() -> None:
    rows = schedule(bound=4)
    rows.first()
    assert rows.next(None) is None
    assert (rows.answers, rows.appended) == ([[1, 2, CHOSEN, 3], [CHOSEN, 5, END]], [[4], [3]])
    rows = schedule(bound=2)  # before any choice
    rows.first()
    assert rows.answers[0] == [1, 2]


def test_long_runs_take_several_steps_and_are_followed_by_a_choice() -> None:
    run = list(range(100, 100 + RUN_LIMIT + 3))
    rows = Schedule(
        [[7]], lambda row, position, chosen: run if position == 1 else [], Rules(frozenset({END}), 200, TRASH)
    )
    widths = [rows.first().tokens.shape[1]]
    for _ in range(3):
        chunk = rows.next(None)
        assert chunk is not None
        widths.append(chunk.tokens.shape[1])
    assert widths == [1, RUN_LIMIT, 4, 1]
    assert rows.answers == [[CHOSEN, *run, CHOSEN]]
    assert rows.appended == [[RUN_LIMIT, 4, 1]]


def test_fixed_widths_pad_on_the_left() -> None:
    rows = schedule(widths=COMPILED_WIDTHS)
    assert rows.first().tokens.shape == (2, 4)  # prompts are as wide as they are
    chunk = rows.next(None)
    assert chunk is not None
    assert chunk.tokens.tolist() == [[0, CHOSEN, 3, 4], [0] * 4]
    assert chunk.columns.tolist() == [[TRASH, 4, 5, 6], [TRASH] * 4]
    assert chunk.kept is None
    assert np.array_equal(chunk.rows, [0, 1])
