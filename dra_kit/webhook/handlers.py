"""kopf's admission handlers: one id, one path, for every kind that carries config and every served version."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final

from dra_kit.errors import InvalidConfig
from dra_kit.kube.operator.operator import kopf
from dra_kit.webhook.configuration import WEBHOOK_ID
from dra_kit.webhook.review import REVIEWED, Refusal
from dra_kit.webhook.server import VERDICT

logger: logging.Logger = logging.getLogger(__name__)

_REFUSED: Final = 422  # Unprocessable Entity, as the API server answers to an invalid object


def register(registry: kopf.OperatorRegistry, versions: Iterable[str]) -> None:
    """Register the handlers, which answer with the verdict of the server.

    Args:
        registry: of the life that is being built.
        versions: of resource.k8s.io that reviews may come in.
    """
    logging.getLogger("kopf.objects").addFilter(_without_refusals)

    async def validate(*, body: Mapping[str, Any], **review: Any) -> None:
        refusal: Refusal | None = body[VERDICT]  # an object without a verdict is an error, and refused
        if refusal is not None:
            # not the text: what it quotes may be a secret
            fields = {"fields": list(refusal.fields), "code": InvalidConfig.default_code}
            logger.info("object refused", extra={"user": review["userinfo"].get("username"), **fields})
            raise kopf.AdmissionError(refusal.text, code=_REFUSED)

    for version in versions:
        for resource in REVIEWED:
            kopf.on.validate(resource.group, version, resource.plural, id=WEBHOOK_ID, registry=registry)(validate)


def _without_refusals(record: logging.LogRecord) -> bool:
    """Log no refusal as an ERROR, as kopf does; a handler that breaks is still reported."""
    return " failed permanently: " not in record.getMessage()
