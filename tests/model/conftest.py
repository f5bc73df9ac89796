"""The registered models, fetched when a test first asks for them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from edgetune.model import registry
from edgetune.model.prepare import prepare
from edgetune.records import PreparedModel


@pytest.fixture(scope="session")
def prepared_model() -> Callable[[str], PreparedModel]:
    """A registered model by name, prepared once for all tests."""
    done: dict[str, PreparedModel] = {}

    def get(name: str) -> PreparedModel:
        if name not in done:
            entry = registry.get(name)
            done[name] = prepare(registry.fetch(name, random_weights=True), entry.shapes, entry.freeze)
        return done[name]

    return get
