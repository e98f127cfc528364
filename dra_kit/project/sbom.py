"""Where components are found: in a file of pins, or in the environment that runs this."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path

from dra_kit.sbom.component import Component, normalized

_PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)((?:[^\n]*\\\n)*[^\n]*)", re.MULTILINE)
_LICENCE_MAX = 100  # characters; more is the text of a licence, not its name


def pinned(path: Path) -> Iterator[Component]:
    """Yield the packages of a file of requirements, with versions and hashes.

    Args:
        path: such as ``requirements/runtime.txt``.
    """
    for name, version, rest in _PIN.findall(path.read_text(encoding="utf-8")):
        yield Component(normalized(name), version, tuple(re.findall(r"--hash=sha256:([0-9a-f]{64})", rest)))


def installed(found: Iterable[Distribution] | None = None) -> list[Component]:
    """Return the packages of this environment, by name.

    Args:
        found: other ones.
    """
    # the first of a name is the one that is imported
    by_name: dict[str, Distribution] = {}
    for distribution in distributions() if found is None else found:
        by_name.setdefault(normalized(distribution.name), distribution)
    components = []
    for name, item in sorted(by_name.items()):
        requires = tuple(sorted(set(_requires(item)) & by_name.keys()))
        components.append(Component(name, item.version, licence=_licence(item), requires=requires))
    return components


def required(requirement: str) -> str:
    """Return the name of the distribution that a requirement is about (PEP 508), such as ``kopf`` of ``kopf>=1.37``."""
    return normalized(re.split(r"[^\w.-]", requirement, maxsplit=1)[0])


def _requires(distribution: Distribution) -> Iterator[str]:
    """Return the requirements; those of extras are left out."""
    return (required(text) for text in distribution.requires or () if "extra ==" not in text)


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
