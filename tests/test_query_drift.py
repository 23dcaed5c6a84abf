"""SQL modules of drift and disagreement: exact rows of literal token tracks."""

from __future__ import annotations

from pathlib import Path

from sql_rows import events_loaded
from token_tracks import Token, sequence

FIRST: list[Token] = [
    ("]<", "copy", -1),
    ("1.0000", "free", 0),
    ("00", "filler", 0),
    (",0.5,2.1", "free", 0),
    ("ab", "junk", 0),
    ("ra", "junk", 0),
    ("><-", "copy", -1),
    ("3.0,2.0,", "free", 1),
    ("1.0", "free", 1),
    (")>x<", "junk", 1),
    ("1.0", "free", 2),
    (",2.", "free", 2),
    ("0>", "copy", -1),
]
SECOND: list[Token] = [("<", "copy", -1), ("7", "free", 0), ("</s>", "eos", -1)]
COLUMNS = "sequence, block, position, tokens, free, junk, filler, junk_position"


def test_blocks_and_their_texts(tmp_path: Path) -> None:
    with events_loaded(tmp_path, [sequence(0, FIRST), sequence(1, SECOND)]) as query:
        assert query("drift", f"SELECT {COLUMNS} FROM molprof_block") == [
            (0, 0, 1, 5, 2, 2, 1, 4),
            (0, 1, 7, 3, 2, 1, 0, 9),
            (0, 2, 10, 2, 2, 0, 0, None),
            (1, 0, 1, 1, 1, 0, 0, None),
        ]
        assert query("drift", "SELECT text, marked_text, surplus_text FROM molprof_block") == [
            ("1.000000,0.5,2.1abra", "<1.0000|00|,0.5,2.1|abra|>", "00abra"),
            ("-3.0,2.0,1.0)", "<-3.0,2.0,1.0|)|>", ")"),
            ("1.0,2.0", "<1.0,2.0>", ""),
            ("7", "<7>", ""),
        ]
        unknown = "SELECT DISTINCT template_free, needed, drift FROM molprof_block"
        assert query("drift", unknown) == [(None, None, None)]
        assert query("drift", "SELECT * FROM molprof_drift_histogram") == [(None, 4)]
        assert query("drift", "SELECT * FROM molprof_surplus_histogram") == [(0, 2), (1, 1), (3, 1)]


def test_a_block_that_holds_no_token_is_a_block(tmp_path: Path) -> None:
    # `<>`, then a text that ends behind a `<`; the template has a block more, which was never reached.
    tokens: list[Token] = [("[C]<>[O]<", "copy", -1), ("1.0,2.0,3.0", "free", 1), (">[N]<", "copy", -1)]
    track = sequence(0, tokens, block_free=[14, 14, 14, 14], block_needed=[-1, 11, -1])
    with events_loaded(tmp_path, [track]) as query:
        assert query("drift", f"SELECT {COLUMNS}, needed, text, marked_text FROM molprof_block") == [
            (0, 0, None, 0, 0, 0, 0, None, None, "", "<>"),
            (0, 1, 1, 1, 1, 0, 0, None, 11, "1.0,2.0,3.0", "<1.0,2.0,3.0>"),
            (0, 2, None, 0, 0, 0, 0, None, None, "", "<>"),
        ]
        assert query("drift", "SELECT blocks, junk_blocks FROM molprof_sequence_drift") == [(3, 0)]
        assert query("drift", "SELECT surplus, blocks FROM molprof_surplus_histogram") == [(0, 3)]


def test_signed_drift(tmp_path: Path) -> None:
    first = sequence(0, FIRST, block_free=[14, 14, 14], block_needed=[11, 14, 15])
    second = sequence(1, SECOND, block_free=[14, 14], block_needed=[-1])
    with events_loaded(tmp_path, [first, second]) as query:
        sql = "SELECT sequence, block, template_free, needed, drift FROM molprof_block"
        assert query("drift", sql) == [
            (0, 0, 14, 11, 3),
            (0, 1, 14, 14, 0),
            (0, 2, 14, 15, -1),
            (1, 0, 14, None, None),
        ]
        assert query("drift", "SELECT * FROM molprof_drift_histogram") == [(None, 1), (-1, 1), (0, 1), (3, 1)]


def test_without_a_template_there_is_no_drift(tmp_path: Path) -> None:
    with events_loaded(tmp_path, [sequence(0, FIRST, block_needed=[11, 14, 15])]) as query:
        assert query("drift", "SELECT template_free, needed, drift FROM molprof_block") == [
            (None, 11, None),
            (None, 14, None),
            (None, 15, None),
        ]


def test_disagreement(tmp_path: Path) -> None:
    events = [
        sequence(0, SECOND, probability=[1.0, 0.25, 3.5e-08], rank=[0, 2, 17], choice=["copy", "free", "copy"],
                 forbidden=[0, 0, 1]),
        sequence(1, SECOND),
    ]  # fmt: skip
    with events_loaded(tmp_path, events) as query:
        assert query("disagreement", "SELECT * FROM molprof_token_disagreement") == [
            (0, 0, "<", "copy", -1, "copy", 1.0, 0, 0),
            (0, 1, "7", "free", 0, "free", 0.25, 2, 0),
            (0, 2, "</s>", "eos", -1, "copy", 3.5e-08, 17, 1),
        ]
        assert query("disagreement", "SELECT * FROM molprof_disagreement_summary") == [
            ("copy", 2, (1 + 3.5e-08) / 2, 0.5, 0.5),
            ("free", 1, 0.25, 0.0, 0.0),
        ]


def test_no_disagreement_recorded(tmp_path: Path) -> None:
    with events_loaded(tmp_path, [sequence(0, SECOND)]) as query:
        assert query("disagreement", "SELECT * FROM molprof_token_disagreement") == []
