"""kopf's admission handlers: one id, one path, for every kind that carries config and every served version."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dra_kit.author.driver import Driver
from dra_kit.kube.operator import kopf
from dra_kit.webhook.configuration import WEBHOOK_ID
from dra_kit.webhook.review import CONFIG_FIELDS, refusal

_REFUSED = 422  # Unprocessable Entity, as the API server answers to an invalid object


def register(registry: kopf.OperatorRegistry, driver: Driver[Any, Any], versions: Iterable[str]) -> None:
    """Registers the handlers.

    Args:
        registry: of the life that is being built.
        driver: whose configs are checked.
        versions: of resource.k8s.io that the API server serves.
    """

    async def validate(*, body: Mapping[str, Any], **review: Any) -> None:
        text = refusal(body, review["old"], review["operation"] or "", driver)
        if text is not None:
            raise kopf.AdmissionError(text, code=_REFUSED)

    for version in versions:
        for resource in CONFIG_FIELDS:
            kopf.on.validate(resource.group, version, resource.plural, id=WEBHOOK_ID, registry=registry)(validate)
