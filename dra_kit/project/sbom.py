"""The CycloneDX SBOM of installed or pinned packages; ``python -m dra_kit.project.sbom`` writes dra-kit's own."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from dra_kit import __version__

_PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)((?:[^\n]*\\\n)*[^\n]*)", re.MULTILINE)
_LICENCE_MAX = 100  # characters; more is the text of a licence, not its name


def pinned_components(path: Path) -> Iterator[Component]:
    """Yield the packages in a requirements file such as ``requirements/runtime.txt``, with versions and hashes."""
    for name, version, rest in _PIN.findall(path.read_text(encoding="utf-8")):
        yield Component(normalized(name), version, tuple(re.findall(r"--hash=sha256:([0-9a-f]{64})", rest)))


def installed_components(found: Iterable[Distribution] | None = None) -> list[Component]:
    """Return the given packages, by default those of this environment, sorted by name."""
    # the first of a name is the one that is imported
    by_name: dict[str, Distribution] = {}
    for distribution in distributions() if found is None else found:
        by_name.setdefault(normalized(distribution.name), distribution)
    components = []
    for name, item in sorted(by_name.items()):
        # without the requirements of extras
        requires = {required(text) for text in item.requires or () if "extra ==" not in text}
        present = tuple(sorted(requires & by_name.keys()))
        components.append(Component(name, item.version, licence=_licence(item), requires=present))
    return components


def required(requirement: str) -> str:
    """Return the name of the distribution in a requirement (PEP 508), such as ``kopf`` in ``kopf>=1.37``."""
    return normalized(re.split(r"[^\w.-]", requirement, maxsplit=1)[0])


def _licence(distribution: Distribution) -> str:
    for field in ("License-Expression", "License"):
        for text in _all(distribution, field):
            if len(text) <= _LICENCE_MAX and "\n" not in text:
                return text
    of_classifiers = [item for item in _all(distribution, "Classifier") if item.startswith("License :: ")]
    return of_classifiers[0].rpartition(" :: ")[2] if of_classifiers else ""


def _all(distribution: Distribution, field: str) -> list[str]:
    found: list[str] = distribution.metadata.get_all(field) or []
    return [text for text in found if text]


class Component(Struct, frozen=True):
    """One version of a distribution.

    Attributes:
        name: the normalized name, as in the output of current ``pip freeze``: ``kubernetes-asyncio``.
        hashes: SHA-256 of the files that it may be installed from, if known.
        licence: its SPDX expression, or another licence text from its metadata; empty if there is none.
        requires: names of the distributions that it requires; None if unknown.
    """

    name: str
    version: str
    hashes: tuple[str, ...] = ()
    licence: str = ""
    requires: tuple[str, ...] | None = None

    @property
    def purl(self) -> str:
        """Its package URL, by which scanners look it up."""
        return f"pkg:pypi/{self.name}@{self.version}"


def normalized(name: str) -> str:
    """Return a distribution's name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def cyclonedx_document(whole: Component, parts: Sequence[Component]) -> dict[str, Any]:
    """Return the SBOM of a distribution and its environment."""
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


def cyclonedx_text(made: dict[str, Any]) -> str:
    """Return the document as JSON with one line for each component, for small diffs."""
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


ROOT: Final = Path(__file__).parents[2]
FILE: Final = ROOT / "requirements" / "dra-kit.cdx.json"


def generated() -> str:
    """Return the content of :data:`FILE`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    parts = list(pinned_components(ROOT / "requirements" / "runtime.txt"))
    names = {part.name for part in parts}
    needed = set(map(required, project["dependencies"]))
    whole = Component("dra-kit", __version__, licence=project["license"], requires=tuple(sorted(needed & names)))
    return cyclonedx_text(cyclonedx_document(whole, parts))


def main() -> None:
    """Write :data:`FILE`."""
    FILE.write_text(generated(), encoding="utf-8")


if __name__ == "__main__":
    main()
