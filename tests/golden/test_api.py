"""The embedded API server gives the recorded answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest

from tests.golden import api
from tests.golden.files import cases, read, stem, title
from tests.golden.pins import pinned
from tests.golden.report import Agreement

SLOW = "E-costs"
"""Takes seconds: ``make test-processes`` replays it."""
FILES = {stem(path): path for path in pinned("golden/api/[A-CE-G]-*") if stem(path) != SLOW}

RecordProperty: TypeAlias = Callable[[str, object], None]


@pytest.mark.parametrize("name", FILES)
def test_answers_equal_real_api_server(name: str, record_property: RecordProperty) -> None:
    agreement = Agreement()

    agreement.add(name, cases(api, read(FILES[name])))

    record_property("golden", agreement.told(title(api, FILES[name])))
    assert agreement.total > 0
    assert [difference.id for difference in agreement.differences] == []
    assert agreement.stale == []
