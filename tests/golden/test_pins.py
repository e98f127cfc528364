"""Each data file exists, has a pin, and has the pinned number of lines."""

from __future__ import annotations

import pytest

from tests.golden.files import read
from tests.golden.pins import DATA, PINS, pinned


@pytest.mark.parametrize("name", PINS)
def test_file_has_pinned_number_of_lines(name: str) -> None:
    assert len(read(DATA / name)) == PINS[name]


def test_every_file_has_a_pin() -> None:
    files = {str(path.relative_to(DATA)) for path in DATA.rglob("*.jsonl*")}

    assert files == set(PINS)


def test_pattern_without_file_is_error() -> None:
    with pytest.raises(LookupError, match=r"names no file golden/api/Z-\*"):
        pinned("golden/api/Z-*")


def test_empty_parametrization_fails(pytestconfig: pytest.Config) -> None:
    assert pytestconfig.getini("empty_parameter_set_mark") == "fail_at_collect"
