"""Sizes that vary: what is built for what is asked, and which size serves which."""

from __future__ import annotations

import pytest

from edgetune.errors import UsageError
from edgetune.sizes import Dimension, Sizes, parse_sizes


@pytest.mark.parametrize(
    "given, built",
    [
        (7, (7,)),
        ("7", (7,)),
        ("1..8", (1, 2, 4, 8)),
        ("3..10", (3, 4, 8, 10)),
        ("5..7", (5, 7)),
        ("5..5", (5,)),
        ("1/8", (1, 8)),
        ("8/1/3/3", (1, 3, 8)),
        ((1, 4, 6), (1, 4, 6)),
    ],
)
def test_the_sizes_built(given, built) -> None:
    assert parse_sizes(given) == built


@pytest.mark.parametrize(
    "given",
    ["", "0", "0..4", "8..1", "1..", "1/", "1/0", "x", "-1", (), (1, 0), (1.5,), ("1",), "9" * 20, (2**63,)],
)
def test_what_is_no_size(given) -> None:
    with pytest.raises(UsageError, match=r"1\.\.8"):
        parse_sizes(given)


def test_sizes_in_between_are_served_only_where_they_may_be_padded() -> None:
    exact, padded = Sizes((2, 4, 8)), Sizes((2, 4, 8), padded=True)
    assert [exact.bucket(size) for size in range(1, 10)] == [None, 2, None, 4, None, None, None, 8, None]
    assert [padded.bucket(size) for size in range(1, 10)] == [None, 2, 4, 4, 8, 8, 8, 8, None]
    assert (str(exact), str(padded)) == ("2/4/8", "2..8")


def test_a_size_in_between() -> None:
    assert Sizes((1, 2, 4, 8)).between() == 6
    assert Sizes((1, 8, 9)).between() == 4
    assert Sizes((1, 2, 3)).between() is None


def test_inputs_must_agree() -> None:
    dimension = Dimension("batch", Sizes((1, 4)), (("x", 0), ("h", 1)))
    assert dimension.of({"x": (3, 5), "h": (2, 3)}) == 3
    with pytest.raises(UsageError, match=r"'batch' is 3 in input 'x' and 4 in input 'h'"):
        dimension.of({"x": (3, 5), "h": (2, 4)})
