"""The kinds that configure admission, and whether there is any object of them."""

from __future__ import annotations

from typing import Final

from dra_kit.apiserver.api import Api

_GROUP: Final = "admissionregistration.k8s.io"
VALIDATING: Final = f"validatingwebhookconfigurations.{_GROUP}"
MUTATING: Final = f"mutatingwebhookconfigurations.{_GROUP}"
POLICIES: Final = f"validatingadmissionpolicies.{_GROUP}"
BINDINGS: Final = f"validatingadmissionpolicybindings.{_GROUP}"


def has_webhooks(api: Api) -> bool:
    """Return whether there is a configuration of webhooks."""
    return any(_has(api, resource) for resource in (MUTATING, VALIDATING))


def has_policies(api: Api) -> bool:
    """Return whether a policy may be bound."""
    return _has(api, BINDINGS)


def _has(api: Api, resource: str) -> bool:
    return next(api.storage.items(resource), None) is not None
