"""How much each factor contributes to the change of a sum of products: the exact Shapley value, in whole numbers.

Each term is a product of named factors, each with a first and another value. A factor's share of the change is
its mean marginal effect over all orders in which the factors could have changed one after the other (L. S. Shapley,
"A value for n-person games", 1953; for such decompositions A. F. Shorrocks, "Decomposition procedures for
distributional analysis", J. Econ. Inequal. 11, 2013). So no order is preferred, the shares add up to the change, they
change sign when first and other change places, and a factor that stays as it is has none. For a product of two
it is the midpoint rule (T. L. Bennet, 1920): d(x y) = dx (y0 + y1) / 2 + dy (x0 + x1) / 2. The Shapley value of a
sum of terms is the sum of theirs, so a part may stand in several terms.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from itertools import combinations
from math import factorial, floor
from typing import NamedTuple


class Factor(NamedTuple):
    """One factor of a term: the part that its change counts for, and its two values."""

    part: str
    first: Fraction
    other: Fraction


def attribute(terms: Iterable[tuple[Factor, ...]]) -> dict[str, Fraction]:
    """The exact change of the sum of `terms` by part, in order of first appearance."""
    shares: dict[str, Fraction] = {}
    for term in terms:
        for place, factor in enumerate(term):
            others = term[:place] + term[place + 1 :]
            share = (factor.other - factor.first) * _mean_product(others)
            shares[factor.part] = shares.get(factor.part, Fraction(0)) + share
    return shares


def _mean_product(factors: tuple[Factor, ...]) -> Fraction:
    """Mean product over all orders of these factors and one more, where those before it have changed."""
    count = len(factors)
    total = Fraction(0)
    for changed in range(count + 1):
        weight = Fraction(factorial(changed) * factorial(count - changed), factorial(count + 1))
        for chosen in combinations(range(count), changed):
            product = Fraction(1)
            for place, factor in enumerate(factors):
                product *= factor.other if place in chosen else factor.first
            total += weight * product
    return total


def rounded(shares: Mapping[str, Fraction]) -> dict[str, int]:
    """Whole numbers, each less than 1 from its share, that add up to the rounded sum of the shares.

    Largest remainder, from zero both ways: shares of the opposite sign round to the opposite numbers.
    """
    whole = {part: floor(share) if share >= 0 else -floor(-share) for part, share in shares.items()}
    missing = round(sum(shares.values(), Fraction(0))) - sum(whole.values())
    sign = 1 if missing > 0 else -1
    # sorted() is stable, so equal remainders go by the order of the parts, whatever the sign.
    for part in sorted(shares, key=lambda part: sign * (whole[part] - shares[part]))[: abs(missing)]:
        whole[part] += sign
    return whole
