"""The CEL expressions of manifests, compiled as the API server compiles new ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dra_kit.diagnosis.selector_mistakes.expression import Expression, Role, compiled
from dra_kit.kubernetes.release import FeatureGates
from dra_kit.kubernetes.resource.validation.claims import environment
from dra_kit.lint.structure.manifest import Manifest


def expressions(manifest: Manifest, gates: FeatureGates) -> Iterator[Expression]:
    """Yield all expressions of a manifest that an API server with these gates looks at, in its order."""
    if not manifest.api_version.startswith("resource.k8s.io/"):
        return
    declarations = environment(gates)
    for path, text, role in _texts(manifest.document.body, ""):
        if role == "selector" or "DRADerivedAttributes" in gates:
            yield compiled(text, declarations, path=path, role=role)


def _texts(value: Any, path: str) -> Iterator[tuple[str, str, Role]]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _texts(item, f"{path}[{index}]")
        return
    if not isinstance(value, Mapping):
        return
    for key, item in value.items():
        where = f"{path}.{key}" if path else key
        if key in {"opaque", "status", "metadata", "attributes", "capacity"}:
            continue  # what is below may have any keys
        if key == "expression" and isinstance(item, str) and item:
            role: Role = "derived" if ".derivedAttributes[" in path else "selector"
            if role == "derived" or path.endswith(".cel"):
                yield where, item, role
        else:
            yield from _texts(item, where)
