"""Which records are the same candidate, and which need no second measurement."""

from __future__ import annotations

import pytest

from edgetune.logs import is_settled, trace_key
from edgetune.logs.testing import CRASH, LOST, TIMEOUT, WRONG, record
from edgetune.records import Failure


@pytest.mark.parametrize(
    "one, other",
    [
        ('[["Split",["l1",4],[true,false]],[]]', '[ ["Split", ["l1", 4], [1, 0]], [] ]'),
        ("[1.0,2.5,1e-05]", "[1,2.5,1.0000000000000000818e-05]"),
        ("[0.33333333333333331]", "[0.3333333333333333]"),
        ('{"b":1,"a":[true]}', '{"a":[1],"b":1}'),
        ('[true,true,false,{"x":true}]', '[1,1,0,{"x":1}]'),
    ],
)
def test_spellings_of_one_trace(one: str, other: str) -> None:
    assert trace_key(one) == trace_key(other)


@pytest.mark.parametrize(
    "one, other",
    [
        ("[1]", "[2]"),
        ("[1.5]", "[1]"),
        ('["true"]', "[true]"),
        ("[[1],2]", "[1,[2]]"),
        ("not JSON", "not  JSON"),
        ("[null]", "[0]"),
    ],
)
def test_different_traces(one: str, other: str) -> None:
    assert trace_key(one) != trace_key(other)


def test_the_key_of_a_trace_never_changes() -> None:
    """It is in every database there is: a change needs a migration."""
    assert trace_key('[["Split",["l1",4],[true,false]],[]]') == "d2b44a752862a6ea075d0ebabfd46283"
    assert trace_key("[" * 100_000) == trace_key("[" * 100_000)


@pytest.mark.parametrize(
    "outcome, settled", [(1e-3, True), (CRASH, True), (WRONG, True), (TIMEOUT, True), (LOST, False)]
)
def test_only_a_lost_device_asks_for_another_try(outcome: float | Failure, settled: bool) -> None:
    assert is_settled(record(outcome)) is settled
