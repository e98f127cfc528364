"""Attributes that constraints compare, against the devices that are known."""

from __future__ import annotations

from collections.abc import Iterator

from dra_kit.diagnosis.selector_mistakes.device_rules import Advertised
from dra_kit.lint.fixes.remedy import Rewrite
from dra_kit.lint.structure.fields import Problem
from dra_kit.lint.structure.manifest import Manifest
from dra_kit.text import did_you_mean, unambiguous_correction


def constraint_problems(manifest: Manifest, advertised: Advertised) -> Iterator[Problem]:
    """Yield constraints on attributes that no device has: no devices ever meet them."""
    if manifest.claim is None or not advertised.total:
        return
    path, spec = manifest.claim
    asked = [body for request in spec.devices.requests for body in (request.exactly, *request.first_available) if body]
    derived = {attribute.name for body in asked for attribute in body.derived_attributes}
    for index, constraint in enumerate(spec.devices.constraints):
        where = f"{path}.devices.constraints[{index}]"
        for field, name in (
            ("matchAttribute", constraint.match_attribute),
            ("distinctAttribute", constraint.distinct_attribute),
        ):
            if name and name not in derived and name.count("/") == 1:
                yield from _attribute(f"{where}.{field}", name, advertised)


def _attribute(path: str, name: str, advertised: Advertised) -> Iterator[Problem]:
    domain, _, identifier = name.partition("/")
    known = advertised.names("attributes", domain)
    if identifier in known:
        return
    everywhere = [
        f"{one}/{each}" for one in advertised.domains("attributes") for each in advertised.names("attributes", one)
    ]
    homes = [each for each in everywhere if _identifier(each) == identifier]
    if homes and domain in advertised.drivers:  # a standard attribute such as pcieRoot is in a domain of Kubernetes
        text = f"{identifier} is no attribute of {domain}: devices have {' and '.join(homes)}"
        own = (Rewrite(path, homes[0]),) if len(homes) == 1 else ()
        yield Problem(path, "unknown-attribute", text, f"write {homes[0]}", remedies=own)
        return
    # long domains make all of their names alike
    likely = [each for each in everywhere if each in homes or did_you_mean(identifier, [_identifier(each)])]
    wish = did_you_mean(name, likely).removeprefix("; ")
    if wish or advertised.speaks_for(domain):
        text = f"no device has an attribute {name}, so that none meets the constraint"
        intended = unambiguous_correction(name, everywhere)
        sure = (Rewrite(path, intended),) if intended else ()
        wish = wish or f"they have {', '.join(sorted(everywhere)[:8])}"
        yield Problem(path, "unknown-attribute", text, wish, remedies=sure)


def _identifier(name: str) -> str:
    return name.rpartition("/")[2]
