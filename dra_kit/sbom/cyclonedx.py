"""A CycloneDX 1.6 document, which says the same for the same components: no time, no number of its own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from dra_kit.sbom.component import Component


def document(whole: Component, parts: Sequence[Component]) -> dict[str, Any]:
    """Return the document.

    Args:
        whole: what it is about.
        parts: of it.
    """
    known = {part.name: part.purl for part in (whole, *parts)}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": _component(whole, "application")},
        "components": [_component(part, "library") for part in parts],
        "dependencies": [
            {"ref": part.purl, "dependsOn": [known[name] for name in part.requires if name in known]}
            for part in (whole, *parts)
            if part.requires is not None
        ],
    }


def text(made: dict[str, Any]) -> str:
    """Return the document as JSON with one line for each component, so that a change of one is a change of a line."""
    lines = []
    for name, value in made.items():
        if isinstance(value, list):
            items = ",\n".join(f"  {json.dumps(item)}" for item in value)
            lines.append(f'"{name}": [\n{items}\n]' if value else f'"{name}": []')
        else:
            lines.append(f'"{name}": {json.dumps(value)}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _component(part: Component, kind: str) -> dict[str, Any]:
    made: dict[str, Any] = {
        "type": kind, "bom-ref": part.purl, "name": part.name, "version": part.version, "purl": part.purl
    }  # fmt: skip
    if part.hashes:
        made["hashes"] = [{"alg": "SHA-256", "content": each} for each in part.hashes]
    if part.licence:
        made["licenses"] = [{"license": {"name": part.licence}}]
    return made
