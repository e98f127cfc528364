"""The reader returns the values recorded from kubectl."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dra_kit.kubernetes.manifests.documents import parse_documents
from dra_kit.kubernetes.manifests.files import UnreadableText
from tests.unit.kubernetes.manifests.record import HEAD, texts

RECORDED = [
    json.loads(line) for line in Path("tests/data/golden/kubectl-yaml.jsonl").read_text(encoding="utf-8").splitlines()
]


def observed(text: str) -> Any:
    try:
        first, *_ = parse_documents(HEAD + text)
        return first.value.get("value")
    except UnreadableText as error:
        return error


def test_record_covers_all_texts() -> None:
    assert [line["text"] for line in RECORDED] == list(texts())
    assert len(RECORDED) == 358


@pytest.mark.parametrize("line", RECORDED, ids=lambda line: repr(line["text"]))
def test_values_equal_kubectl(line: dict[str, Any]) -> None:
    value = observed(line["text"])
    if "error" in line:
        assert isinstance(value, UnreadableText), (value, line["error"])
    else:
        assert json.dumps(value, sort_keys=True) == json.dumps(line["value"], sort_keys=True)
