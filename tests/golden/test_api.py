"""The embedded API server answers as the recorded one did."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.golden import api
from tests.golden.files import cases, read, title
from tests.golden.report import Agreement

DATA = Path(__file__).parents[1] / "data" / "golden" / "api"
FILES = {path.name.split(".")[0]: path for path in sorted(DATA.glob("[ABC]-*"))}

RecordProperty: TypeAlias = Callable[[str, object], None]


@pytest.mark.parametrize("name", FILES)
def test_answers_are_those_of_a_real_api_server(name: str, record_property: RecordProperty) -> None:
    agreement = Agreement()

    agreement.add(name, cases(api, read(FILES[name])))

    record_property("golden", agreement.told(title(api, FILES[name])))
    assert agreement.total > 0
    assert [difference.id for difference in agreement.differences] == []
    assert agreement.stale == []
