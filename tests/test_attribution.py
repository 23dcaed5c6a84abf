"""The Shapley value of a sum of products: against its definition, and in whole numbers."""

from __future__ import annotations

from fractions import Fraction
from itertools import permutations
from math import prod

from hypothesis import given
from hypothesis import strategies as st

from molprof.analysis.compare.difference import Factor, attribute, rounded

NUMBERS = st.fractions(min_value=-1000, max_value=1000, max_denominator=50)
TERMS = st.lists(
    st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=3).map(
        lambda pairs: tuple(Factor(f"p{place}", *pair) for place, pair in enumerate(pairs))
    ),
    max_size=4,
)


def factor(part: str, first: int, other: int) -> Factor:
    return Factor(part, Fraction(first), Fraction(other))


def test_a_product_of_two_is_split_at_the_midpoint() -> None:
    # 2 x 10 -> 3 x 14: one more at a mean price of 12, and 4 dearer for a mean of 2.5.
    assert attribute([(factor("count", 2, 3), factor("price", 10, 14))]) == {"count": 12, "price": 10}


def test_a_part_in_several_terms_and_one_that_stays() -> None:
    terms = [(factor("a", 1, 2), factor("b", 5, 5)), (factor("a", 10, 7),), (factor("c", 4, 4),)]
    assert attribute(terms) == {"a": 2, "b": 0, "c": 0}


def test_a_product_of_three_against_every_order_of_change() -> None:
    values = [(Fraction(2), Fraction(3)), (Fraction(5), Fraction(11)), (Fraction(7), Fraction(1))]
    expected = dict.fromkeys("abc", Fraction(0))
    for order in permutations(range(3)):
        now = [first for first, _ in values]
        for place in order:
            before = prod(now, start=Fraction(1))
            now[place] = values[place][1]
            expected["abc"[place]] += (prod(now, start=Fraction(1)) - before) / 6
    term = tuple(Factor(name, *pair) for name, pair in zip("abc", values, strict=True))
    assert attribute([term]) == expected


@given(TERMS)
def test_shares_add_up_to_the_change_and_change_sign_with_the_direction(terms: list[tuple[Factor, ...]]) -> None:
    shares = attribute(terms)
    change = sum(
        (prod(f.other for f in term) - prod(f.first for f in term) for term in terms),
        Fraction(0),
    )
    assert sum(shares.values(), Fraction(0)) == change
    backwards = attribute([tuple(Factor(f.part, f.other, f.first) for f in term) for term in terms])
    assert backwards == {part: -share for part, share in shares.items()}


def test_rounding_goes_to_the_largest_remainder() -> None:
    thirds = {"a": Fraction(1, 3), "b": Fraction(2, 3), "c": Fraction(-4, 3), "d": Fraction(10, 3)}
    assert rounded(thirds) == {"a": 0, "b": 1, "c": -1, "d": 3}
    # Equal remainders: the first one.
    assert rounded({"a": Fraction(1, 2), "b": Fraction(1, 2)}) == {"a": 1, "b": 0}
    assert rounded({}) == {}


@given(st.dictionaries(st.text(max_size=3), NUMBERS, max_size=8))
def test_rounded_shares_add_up_and_are_less_than_one_away(shares: dict[str, Fraction]) -> None:
    whole = rounded(shares)
    assert list(whole) == list(shares)
    assert sum(whole.values()) == round(sum(shares.values(), Fraction(0)))
    assert all(abs(whole[part] - share) < 1 for part, share in shares.items())
    assert rounded({part: -share for part, share in shares.items()}) == {part: -value for part, value in whole.items()}
