"""The picture of the demo is one that can be shown anywhere."""

import re
from pathlib import Path

PICTURE = Path(__file__).resolve().parents[3] / "docs" / "_static" / "demo.svg"


def test_it_is_small_and_fetches_nothing() -> None:
    text = PICTURE.read_text(encoding="utf-8")
    assert len(text) < 60_000
    assert re.findall(r"""(?:url\(|href=)["']?https?:""", text) == []


def test_it_shows_the_way_of_a_claim() -> None:
    words = PICTURE.read_text(encoding="utf-8").replace("&#160;", " ")
    steps = (
        "ResourceSlice",
        "ResourceClaim lunch asks",
        "scheduler:",
        "NodePrepareResources",
        "MARGHERITA_0_DOUGH=thin",
    )
    places = [words.find(step) for step in steps]
    assert -1 not in places
    assert places == sorted(places)
