"""The CEL expressions of manifests, compiled as the API server compiles new ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from dra_kit import cel
from dra_kit.cel.failure import Refusal
from dra_kit.cel.parser import parse
from dra_kit.cel.syntax import Node
from dra_kit.lint.manifests import Manifest
from dra_kit.resource.gates import FeatureGates
from dra_kit.resource.validation.expressions import environment

Role: TypeAlias = Literal["selector", "derived"]


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression of a manifest.

    Attributes:
        path: its field.
        text: what is written.
        role: what it is for.
        root: its syntax tree; None if it has none. Checked only if ``program`` is there.
        program: it, compiled; None if it does not compile.
        error: why it does not; None if it does.
        declarations: what it was compiled with.
    """

    path: str
    text: str
    role: Role
    root: Node | None
    program: cel.Selector | cel.Derived | None
    error: cel.CelCompileError | None
    declarations: cel.Environment


def expressions(manifest: Manifest, gates: FeatureGates) -> Iterator[Expression]:
    """All expressions of a manifest that an API server with these gates looks at, in its order."""
    if not manifest.api_version.startswith("resource.k8s.io/"):
        return
    for path, text, role in _texts(manifest.document.body, ""):
        if role == "selector" or "DRADerivedAttributes" in gates:
            yield compiled(text, gates, path=path, role=role)


def compiled(text: str, gates: FeatureGates, *, path: str = "", role: Role = "selector") -> Expression:
    """An expression as an API server with these gates compiles it."""
    declarations = environment(gates)
    root: Node | None = None
    try:
        root = parse(text)
    except (Refusal, RecursionError):
        pass  # the compiler says the same, and where
    compiler = cel.compile_derived if role == "derived" else cel.compile_selector
    try:
        program = compiler(text, environment=declarations)
    except cel.CelCompileError as error:
        return Expression(path, text, role, root, None, error, declarations)
    except cel.Unsupported:
        return Expression(path, text, role, root, None, None, declarations)
    return Expression(path, text, role, program.root, program, None, declarations)


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
