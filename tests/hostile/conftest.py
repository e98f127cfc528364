from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.hostile.ledger import Ledger


@pytest.fixture
def ledger(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> Ledger:
    """Records the attacks of a test; the part is the module's ``PART``."""
    return Ledger(request.module.PART, record_property)
