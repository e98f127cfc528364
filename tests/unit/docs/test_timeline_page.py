"""docs/reference/timeline.md tells every kind of record with its fields."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from msgspec.structs import fields

from dra_kit.sandbox.records import Record, TimelineRecord
from dra_kit.sandbox.timeline.recording import Recording

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "timeline.md"
_OF_ALL = {"kind", *(field.encode_name for field in fields(TimelineRecord))}


def test_page_documents_every_kind_with_its_fields() -> None:
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\|(.*)\|$", PAGE.read_text(), re.MULTILINE)
    told = {kind: set(re.findall(r"`(\w+)`", text)) for kind, text in rows}
    kinds = get_args(Record)

    assert set(told) == {kind.__name__ for kind in kinds}
    for kind in kinds:
        own = {field.encode_name for field in fields(kind)} - _OF_ALL
        assert own <= told[kind.__name__], kind


def test_its_example_is_a_timeline(tmp_path: Path) -> None:
    example = PAGE.read_text().partition("```json\n")[2].partition("```")[0]
    (tmp_path / "t.jsonl").write_text(example)

    assert [type(record).__name__ for record in Recording(tmp_path / "t.jsonl").records()] == [
        "RecordingStarted",
        "ClusterStarted",
        "ObjectChanged",
    ]
