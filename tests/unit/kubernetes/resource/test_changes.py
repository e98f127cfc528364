"""Each rule that changed between releases is asked for in one place of the code."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from dra_kit.kubernetes.release import NEWEST, OLDEST, Change, KubernetesVersion

PACKAGE = Path(__file__).parents[4] / "dra_kit"
ALLOWED_TWICE = {
    # the same question about requests and about what claims hold, and where a device is read in one of two forms
    "CAPACITY_NAMES_NORMALIZED",
    "UNUSABLE_VALUES_FAIL_WHERE_READ",
    # the API server checks it, and drivers publish accordingly
    "SLICES_HAVE_DEVICES_OR_COUNTERS",
}


def test_every_change_is_asked_for_in_one_place() -> None:
    uses: Counter[str] = Counter()
    for path in PACKAGE.rglob("*.py"):
        if path.name != "release.py":
            uses.update(set(re.findall(r"has\(\s*Change\.([A-Z_0-9]+)", path.read_text())))

    assert {change.name for change in Change} == set(uses)
    assert {name for name, files in uses.items() if files > 1} <= ALLOWED_TWICE


def test_every_change_has_a_release() -> None:
    newer = KubernetesVersion(NEWEST.major, NEWEST.minor + 1)

    for change in Change:
        assert newer.has(change)
        assert not OLDEST.before.has(change)  # new expressions are compiled for the release before
