"""Verdicts on new objects equal those recorded from a Kubernetes 1.37 API server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest

from dra_kit.kubernetes.release import DEFAULT, Release
from dra_kit.kubernetes.resource.conversion import errors_in_version, from_v1
from dra_kit.kubernetes.resource.new_object import (
    KINDS,
    NO_TIME,
    NewObjectResult,
    check_new_object,
    complete_new_object,
)
from dra_kit.kubernetes.resource.schema.types import StrictDecoding, TypeMismatch, decode, prune
from tests.unit.kubernetes.resource.golden_api import sequences

_FILES = {
    "A-claims": 1071, "A-classes": 150, "A-poolstatus": 28, "A-slices": 1444, "A-taintrules": 181, "A-templates": 498,
    "C-kinds": 4, "C-differences": 272,
}  # fmt: skip
"""Files with the numbers of their verdicts."""
_ADMIN = "Forbidden: admin access to devices requires"


def creations(name: str) -> Iterator[tuple[str, str, dict[str, Any], dict[str, Any]]]:
    """Yield id, gates, body and step of requests that are first in their sequence and create an object."""
    for line in sequences(name):
        step = line["steps"][0]
        created = step["method"] == "POST" and isinstance(step.get("body"), dict) and "query" not in step
        if created and step["status"] in {201, 422}:
            kind = KINDS.get(str(step["body"].get("kind")))
            if kind is not None and not kind.part and step["body"].get("apiVersion") in kind.types:
                yield line["id"], line.get("gates", "default"), step["body"], step


def answered(body: dict[str, Any], gates: str) -> NewObjectResult | None:
    """None of what is not decoded."""
    kind = KINDS[body["kind"]]
    try:
        decoded = decode(deepcopy(body), kind.types[body["apiVersion"]], StrictDecoding(DEFAULT))
    except TypeMismatch:
        return None
    return check_new_object(complete_new_object(decoded, kind, DEFAULT), kind, _gates(gates))


def _gates(name: str) -> Release:
    return Release.alpha() if name == "alpha" else Release.of()


def _short(message: str) -> str:
    """Return a message without the text of the CEL compiler, which other tests compare."""
    return message.partition(": compilation failed: ")[0]


def _recorded(body: dict[str, Any], step: dict[str, Any]) -> set[tuple[str, str, str]]:
    """Return the causes; problems of a generated name are problems of its prefix."""
    found = set()
    for cause in step.get("causes", ()):
        field, message = cause["field"], _short(cause["message"])
        if "<name:0>" in message:
            field, message = "metadata.generateName", message.replace("<name:0>", body["metadata"]["generateName"])
        found.add((field, cause["reason"], message))
    return found


@pytest.mark.parametrize(("name", "number"), _FILES.items())
def test_rejected_object_has_message_of_api_server(name: str, number: int) -> None:
    compared, differences = 0, {}
    for line, gates, body, step in creations(name):
        theirs = _recorded(body, step)
        if any(message.startswith(_ADMIN) for *_, message in theirs):
            continue  # it depends on namespaces
        made = answered(body, gates)
        assert made is not None, line
        errors = errors_in_version(made.errors, body["apiVersion"])
        ours = {(error.path, error.kind.value, _short(error.body)) for error in errors}
        compared += 1
        if ours != theirs:
            differences[line] = (sorted(theirs - ours), sorted(ours - theirs))
    assert differences == {}
    assert compared == number


def test_stored_object_equals_api_server() -> None:
    compared, differences = 0, {}
    for name in _FILES:
        for line, gates, body, step in creations(name):
            kind = KINDS[body["kind"]]
            if kind.model is None or step.get("stored", {}).get("kind") != kind.name:
                continue
            made = answered(body, gates)
            assert made is not None, line
            sent = from_v1(made.stored, kind.name, body["apiVersion"])
            ours = json.dumps(prune(sent, kind.types[body["apiVersion"]], version=DEFAULT).get("spec", {})).replace(
                NO_TIME, "<now>"
            )
            theirs = step["stored"].get("spec", {})
            compared += 1
            if json.loads(ours) != (body["spec"] if theirs == "<as sent>" else theirs):
                differences[line] = (ours, theirs)
    assert differences == {}
    assert compared == 1585
