"""Texts of options become values, or one clear message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgetune.cli.options import parse_freeze, parse_shapes
from edgetune.errors import UsageError


@pytest.mark.parametrize(
    "text, name, dims",
    [
        ("input:1x3x224x224", "input", (1, 3, 224, 224)),
        ("input:[1,3,224,224]", "input", (1, 3, 224, 224)),
        ("input:[1, 3, 224, 224]", "input", (1, 3, 224, 224)),
        ("input:1,3,224,224", "input", (1, 3, 224, 224)),
        ("x:0:1x3", "x:0", (1, 3)),
        ("serving_default:x:0:[5]", "serving_default:x:0", (5,)),
        ("x:7", "x", (7,)),
        ("scalar:[]", "scalar", ()),
        ("a=b c:2x2", "a=b c", (2, 2)),
    ],
)
def test_shapes(text: str, name: str, dims: tuple[int, ...]) -> None:
    assert parse_shapes([text]) == {name: dims}


def test_several_shapes() -> None:
    assert parse_shapes(["x:1x2", "y:3"]) == {"x": (1, 2), "y": (3,)}
    assert parse_shapes([]) is None
    assert parse_shapes(None) is None


@given(st.text(min_size=1), st.lists(st.integers(1, 10**6), min_size=1, max_size=6))
def test_any_name_and_shape_come_back(name: str, dims: list[int]) -> None:
    expected = {name: tuple(dims)}
    assert parse_shapes([f"{name}:{'x'.join(map(str, dims))}"]) == expected
    assert parse_shapes([f"{name}:{dims}"]) == expected


@pytest.mark.parametrize(
    "text", ["1x3x224x224", "x:", ":1x3", "x:1x-3", "x:1xN", "x:0", "x:1.5", "x:[1,3", "x:1xx3"]
)
def test_wrong_shapes(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_shapes([text])
    assert repr(text) in str(caught.value)
    assert "1x3x224x224" in str(caught.value)


def test_a_shape_twice() -> None:
    with pytest.raises(UsageError, match="second time"):
        parse_shapes(["x:1", "x:2"])


@pytest.mark.parametrize(
    "text, name, value",
    [
        ("sr=16000", "sr", 16000),
        ("scale=0.5", "scale", 0.5),
        ("flag=true", "flag", True),
        ("sizes=[1,2]", "sizes", [1, 2]),
        ("a=b=3", "a=b", 3),
        ("x=-1e3", "x", -1000.0),
    ],
)
def test_freeze(text: str, name: str, value: object) -> None:
    parsed = parse_freeze([text])
    assert parsed == {name: value}
    assert type(parsed[name]) is type(value)


@pytest.mark.parametrize("text", ["sr", "=3", "sr=", "sr=abc", "sr=null", 'sr="16000"', "sr={}"])
def test_wrong_freeze(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_freeze([text])
    assert repr(text) in str(caught.value)
    assert "sr=16000" in str(caught.value)
