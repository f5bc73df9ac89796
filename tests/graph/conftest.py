from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture
def no_fallback(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Every schedule and every layout rule must fit the models of a test."""
    caplog.set_level(logging.INFO, "edgetune.kernels")
    caplog.set_level(logging.INFO, "edgetune.graph")
    yield
    records = caplog.get_records("call")
    assert not [r.getMessage() for r in records if r.name in ("edgetune.kernels", "edgetune.graph")]
