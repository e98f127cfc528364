"""Opaque configuration of our driver in an object, checked with the model that the node decodes with."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dra_kit.author.driver import Driver
from dra_kit.errors import InvalidConfig
from dra_kit.kube.resources import DEVICE_CLASSES, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, Resource

logger = logging.getLogger(__name__)

CONFIG_FIELDS: Final[Mapping[Resource, tuple[str, ...]]] = {
    RESOURCE_CLAIMS: ("spec", "devices", "config"),
    RESOURCE_CLAIM_TEMPLATES: ("spec", "spec", "devices", "config"),
    DEVICE_CLASSES: ("spec", "config"),
}
"""Where objects carry a list of configs; the same in v1, v1beta2 and v1beta1."""

_FIELDS_OF_KIND: Final = {resource.kind: fields for resource, fields in CONFIG_FIELDS.items()}


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with an object.

    Attributes:
        path: the field, for example ``spec.devices.config[0].opaque.parameters.toppings[1]``.
        text: what is wrong and what to write instead.
    """

    path: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"


def problems(obj: Mapping[str, Any], driver: Driver[Any, Any]) -> list[Problem]:
    """Everything that is wrong with the configs that an object carries for a driver.

    Configs of other drivers are theirs, and what is no config at all is the API server's to refuse.

    Args:
        obj: a ResourceClaim, ResourceClaimTemplate or DeviceClass in any version, as parsed by
            :func:`dra_kit.values.json.loads`, so that duplicate keys are seen.
        driver: whose configs to check.
    """
    found = []
    for path, parameters in _parameters(obj, driver.name):
        try:
            driver.configs.decode(parameters)
        except InvalidConfig as error:
            if error.__cause__ is not None:  # a validator of the author's broke; the user sees one line of it
                logger.error("config model failed", extra={"field": path}, exc_info=error.__cause__)
            found += [Problem(_join(path, below), text) for below, text in error.problems]
    return found


def refusal(
    obj: Mapping[str, Any], old: Mapping[str, Any] | None, operation: str, driver: Driver[Any, Any]
) -> str | None:
    """Why a request must be refused, in one line with all problems; None when it may pass.

    An update answers only for what it brings in: an object that was stored before its config was checked (or before
    the model became stricter) can still lose its finalizers. Claims cannot change their spec, so their updates pass.

    Args:
        obj: the object as it would be stored.
        old: the stored object that it replaces, if any.
        operation: ``CREATE`` or ``UPDATE``; whatever else passes.
        driver: whose configs to check.
    """
    if operation not in {"CREATE", "UPDATE"} or (operation == "UPDATE" and obj.get("kind") == RESOURCE_CLAIMS.kind):
        return None
    found = problems(obj, driver)
    if found and operation == "UPDATE" and old:
        known = set(problems(old, driver))
        found = [problem for problem in found if problem not in known]
    return f"{_title(obj)}: {'; '.join(map(str, found))}" if found else None


def _parameters(obj: Mapping[str, Any], driver: str) -> Iterator[tuple[str, Any]]:
    """Path and value of the ``parameters`` of each config for ``driver``."""
    fields = _FIELDS_OF_KIND.get(str(obj.get("kind")), ())
    configs: Any = obj if fields else None
    for field in fields:
        configs = configs.get(field) if isinstance(configs, Mapping) else None
    if not isinstance(configs, list):
        return
    for index, config in enumerate(configs):
        opaque = config.get("opaque") if isinstance(config, Mapping) else None
        if isinstance(opaque, Mapping) and opaque.get("driver") == driver:
            yield f"{'.'.join(fields)}[{index}].opaque.parameters", opaque.get("parameters")


def _join(path: str, below: str) -> str:
    return f"{path}{below}" if below.startswith("[") or not below else f"{path}.{below}"


def _title(obj: Mapping[str, Any]) -> str:
    metadata = obj.get("metadata")
    metadata = metadata if isinstance(metadata, Mapping) else {}
    name = metadata.get("name") or f"{metadata.get('generateName', '')}*"
    namespace = f"{metadata['namespace']}/" if metadata.get("namespace") else ""
    return f"{obj.get('kind')} {namespace}{name}"
