"""The embedded API server gives the recorded answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest

from dra_kit.kubernetes.release import Release
from tests.golden import api
from tests.golden.files import cases, read, release_of, stem, title
from tests.golden.pins import pinned
from tests.golden.report import Agreement

SLOW = "E-costs"
"""Takes seconds: ``make test-processes`` replays it."""
NEXT = Release.parse("1.38")
FILES = {stem(path): path for path in pinned("golden/api/[A-CE-G]-*") if stem(path) != SLOW}
CHANGED = {stem(path): path for path in pinned("golden/1.38/api/*")}
"""What Kubernetes 1.38 answers otherwise, and what only it was asked."""
ASKED_AGAIN = CHANGED.keys() | {name for name in FILES if name.startswith(("A-", "B-"))}
"""The files whose requests were sent to Kubernetes 1.38, too."""

OLDEST = {stem(path): path for path in pinned("golden/1.34/api/*")}
"""What Kubernetes 1.34 answers otherwise than 1.37, or alike: a choice."""

RecordProperty: TypeAlias = Callable[[str, object], None]


@pytest.mark.parametrize("name", FILES)
def test_answers_equal_real_api_server(name: str, record_property: RecordProperty) -> None:
    agreement = Agreement()

    agreement.add(name, cases(api, read(FILES[name])))

    record_property("golden", agreement.told(title(api, FILES[name])))
    assert agreement.total > 0
    assert [difference.id for difference in agreement.differences] == []
    assert agreement.stale == []


@pytest.mark.parametrize("name", sorted(ASKED_AGAIN))
def test_answers_equal_those_of_the_next_release(name: str, record_property: RecordProperty) -> None:
    agreement = Agreement()
    former, changed = (read(files[name]) if name in files else [] for files in (FILES, CHANGED))

    agreement.add(name, cases(api, api.for_release(former, changed), NEXT))

    record_property("golden", agreement.told(f"1.38/api/{name}"))
    assert agreement.total > 0
    assert [difference.id for difference in agreement.differences] == []
    assert agreement.stale == []


@pytest.mark.parametrize("name", OLDEST)
def test_answers_equal_those_of_the_oldest_release(name: str, record_property: RecordProperty) -> None:
    agreement = Agreement()

    agreement.add(name, cases(api, read(OLDEST[name]), release_of(OLDEST[name])))

    record_property("golden", agreement.told(f"1.34/api/{name}"))
    assert agreement.total > 0
    assert [difference.id for difference in agreement.differences] == []
    assert agreement.stale == []


NAME = {"field": "metadata.name", "reason": "FieldValueRequired", "message": "Required value"}
LONG = {"field": "spec.driver", "reason": "FieldValueTooLong", "message": "Too long: may not be more than 63 bytes"}


@pytest.mark.parametrize(
    ("causes", "agree"),
    [
        ([LONG, NAME], True),
        ([NAME, LONG | {"message": "Too long"}], True),
        ([NAME, NAME | {"reason": "FieldValueInvalid"}, LONG], True),
        ([NAME], False),
        ([NAME, LONG, {**NAME, "field": "spec.pool.name"}], False),
        ([NAME, LONG | {"field": "spec"}], False),
        ([NAME, LONG | {"reason": "FieldValueInvalid"}], False),
        ([], False),
    ],
)  # fmt: skip
def test_refusals_in_other_words_are_those_of_the_same_fields(causes: list[dict[str, str]], agree: bool) -> None:
    recorded = {"status": 422, "message": "two faults", "causes": [NAME, LONG]}
    words: list[str] = []

    compared = api.Comparison(words, in_words=False).answer(recorded, {"status": 422, "message": "x", "causes": causes})

    assert (compared == recorded) is agree
    assert bool(words) is agree
