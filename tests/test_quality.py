"""Bond errors against a reference conformer."""

from __future__ import annotations

import pytest

from molprof.profiler.molecules.conformers import bond_errors
from molprof.profiler.molecules.smiles import read_positions


def test_positions_are_read_up_to_the_junk() -> None:
    assert read_positions("[C]<1.5,-0.25,0.0abra>[O]<0.0,0.0,1.0,2>") == [(1.5, -0.25, 0.0), (0.0, 0.0, 1.0)]
    assert read_positions("[C]<1.5,-0.25>[O]<0.0,0.0,1.0>") == [None, (0.0, 0.0, 1.0)]
    assert read_positions("[C]<1.5,-.25,0.0>") == [None]


def test_numbers_that_were_cut_are_read_as_far_as_they_go_where_asked() -> None:
    text = "[C]<1.5,-0.25,0.>[O]<0.0,0.0,-1>[N]<1.0,2.0>"
    assert read_positions(text) == [None, None, None]
    assert read_positions(text, cut=True) == [(1.5, -0.25, 0.0), (0.0, 0.0, -1.0), None]


def test_bond_errors_are_differences_of_lengths() -> None:
    made = [(0.0, 0.0, 0.0), (3.0, 4.0, 0.0), (3.0, 4.0, 2.0)]
    reference = [(1.0, 0.0, 0.0), (1.0, 4.5, 0.0), (1.0, 4.5, 3.0)]
    assert bond_errors("CCO", made, reference) == pytest.approx([0.5, 1.0])
    assert bond_errors("CCO", [*made[:2], None], reference) == [pytest.approx(0.5), None]
    assert bond_errors("CCO", made[:2], reference) == [None, None]
