"""No data file is missing, none is shorter or longer than its pin says, and each has one."""

from __future__ import annotations

import pytest

from tests.golden.files import read
from tests.golden.pins import DATA, PINS, pinned


@pytest.mark.parametrize("name", PINS)
def test_a_file_has_as_many_lines_as_its_pin_says(name: str) -> None:
    assert len(read(DATA / name)) == PINS[name]


def test_every_file_has_a_pin() -> None:
    files = {str(path.relative_to(DATA)) for path in DATA.rglob("*.jsonl*")}

    assert files == set(PINS)


def test_a_pattern_without_a_file_is_an_error() -> None:
    with pytest.raises(LookupError, match=r"names no file golden/api/Z-\*"):
        pinned("golden/api/Z-*")


def test_a_test_over_no_files_fails(pytestconfig: pytest.Config) -> None:
    assert pytestconfig.getini("empty_parameter_set_mark") == "fail_at_collect"
