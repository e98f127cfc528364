"""Signatures on the site of the documentation."""

from __future__ import annotations

import runpy

import pytest

import dra_kit
from dra_kit.sandbox.stories.facts import ClaimFacts
from tests.unit.docs.pages import ROOT

of = runpy.run_path(str(ROOT / "docs" / "site_parts" / "signatures.py"))["of"]


@pytest.mark.parametrize(
    ("what", "signature"),
    [
        (dra_kit.ClaimReference, "(namespace: str, name: str, uid: str)"),
        (
            ClaimFacts,
            (
                "(devices: tuple[str, ...] = (), reserved_for: tuple[str, ...] = (), "
                "events: tuple[ObservedEvent, ...] = (), conditions: Mapping[str, tuple[str, ...]] = {})"
            ),
        ),
    ],
    ids=["dataclass", "struct"],
)
def test_a_signature_is_what_its_author_wrote(what: type, signature: str) -> None:
    assert of(what) == signature
