"""The ValidatingWebhookConfiguration that makes the API server call this webhook. It is built here, never written."""

from __future__ import annotations

import base64
import json
from typing import Any, Final
from urllib.parse import urlsplit

from dra_kit.admission.review import REVIEWED
from dra_kit.client.resources import Resource
from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.resource.config import CONFIG_FIELDS

WEBHOOK_ID: Final = "validate-opaque-config"
WEBHOOK_PATH: Final = f"/{WEBHOOK_ID}"


def configuration_name(driver_name: str) -> str:
    """Return the name of a driver's ValidatingWebhookConfiguration."""
    return f"opaque-config.{driver_name}"


def validating_webhook_configuration(driver_name: str, *, url: str, ca_bundle: bytes | None = None) -> dict[str, Any]:
    """Return the configuration object for one driver's webhook, of admissionregistration.k8s.io/v1.

    The API server asks only about objects that carry config of this driver (``matchConditions``, beta and on since
    Kubernetes 1.28), and refuses them while the webhook cannot be reached.

    Args:
        driver_name: the driver whose config is checked.
        url: where the webhook listens, ``https://host:port``.
        ca_bundle: PEM of the authority of the webhook's certificate; None where something else fills it in, such as
            cert-manager's CA injector, or where the API server's own authorities will do.

    Raises:
        ConfigurationError: the API server would refuse the URL.
    """
    client = {"url": _checked(url) + WEBHOOK_PATH}
    if ca_bundle is not None:
        client["caBundle"] = base64.b64encode(ca_bundle).decode()
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": configuration_name(driver_name)},
        "webhooks": [_webhook(resource, driver_name, client) for resource in REVIEWED],
    }


def _webhook(resource: Resource, driver_name: str, client: dict[str, str]) -> dict[str, Any]:
    configs = "object." + ".".join(f"?{field}" for field in CONFIG_FIELDS[resource.kind])
    ours = json.dumps(driver_name)
    return {
        # the API server wants three labels at least, and a driver's name may be a single one
        "name": f"{resource.plural}.opaque-config.{driver_name}",
        "clientConfig": client,
        "rules": [
            {
                "apiGroups": [resource.group],
                "apiVersions": ["v1"],  # covers the others: the API server converts them
                "resources": [resource.plural],
                "operations": list(REVIEWED[resource]),
                "scope": "Namespaced" if resource.namespaced else "Cluster",
            }
        ],
        "matchConditions": [
            {
                "name": "has-config-of-this-driver",
                "expression": f'{configs}.orValue([]).exists(c, c.?opaque.?driver.orValue("") == {ours})',
            }
        ],
        "matchPolicy": "Equivalent",
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "timeoutSeconds": 5,
        "admissionReviewVersions": ["v1"],
    }


def _checked(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme != "https" or not parts.hostname or parts.path not in {"", "/", WEBHOOK_PATH} or parts.query:
        raise ConfigurationError(f"webhook URL {url!r} is not of the form https://host:port; correct it")
    return f"https://{parts.netloc}"
