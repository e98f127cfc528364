"""kopf's admission handlers: one id, one path, for every kind that carries config and every served version."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final

from dra_kit.author.driver import Driver
from dra_kit.kube.operator.operator import kopf
from dra_kit.webhook.configuration import WEBHOOK_ID
from dra_kit.webhook.lanes import Lanes
from dra_kit.webhook.review import REVIEWED, refusal

logger: logging.Logger = logging.getLogger(__name__)

_REFUSED: Final = 422  # Unprocessable Entity, as the API server answers to an invalid object


def register(registry: kopf.OperatorRegistry, driver: Driver[Any, Any], versions: Iterable[str], lanes: Lanes) -> None:
    """Register the handlers.

    Args:
        registry: of the life that is being built.
        driver: whose configs are checked.
        versions: of resource.k8s.io that reviews may come in.
        lanes: where reviews are checked.
    """
    logging.getLogger("kopf.objects").addFilter(_without_refusals)

    async def validate(*, body: Mapping[str, Any], **review: Any) -> None:
        text = await lanes.run(refusal, body, review["old"], review["operation"] or "", driver)
        if text is not None:
            logger.info("object refused", extra={"user": review["userinfo"].get("username"), "error": text})
            raise kopf.AdmissionError(text, code=_REFUSED)

    for version in versions:
        for resource in REVIEWED:
            kopf.on.validate(resource.group, version, resource.plural, id=WEBHOOK_ID, registry=registry)(validate)


def _without_refusals(record: logging.LogRecord) -> bool:
    """Log no refusal as an ERROR, as kopf does; a handler that breaks is still reported."""
    return " failed permanently: " not in record.getMessage()
