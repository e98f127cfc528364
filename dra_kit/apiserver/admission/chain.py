"""The order of admission: mutating webhooks, policies, validating webhooks."""

from __future__ import annotations

from dra_kit.apiserver.admission.policies import PolicyAdmission
from dra_kit.apiserver.admission.requests import BINDINGS, MUTATING, VALIDATING
from dra_kit.apiserver.admission.webhooks import WebhookAdmission
from dra_kit.apiserver.api import AdmissionAttributes
from dra_kit.kubernetes.values.json import Object


class AdmissionChain:
    """Implements :class:`dra_kit.apiserver.api.AdmissionPlugin` with webhooks and policies."""

    def __init__(self) -> None:
        self.webhooks: WebhookAdmission = WebhookAdmission()
        self._policies = PolicyAdmission()

    async def mutate(self, write: AdmissionAttributes, warnings: list[str]) -> Object:
        """See :class:`dra_kit.apiserver.api.AdmissionPlugin`."""
        obj = await self.webhooks.mutate(write, warnings) if _any(write, MUTATING) else write.obj
        assert obj is not None  # noqa: S101 - a deletion is only reviewed
        return obj

    async def review(self, write: AdmissionAttributes, warnings: list[str]) -> None:
        """See :class:`dra_kit.apiserver.api.AdmissionPlugin`."""
        if write.obj is None and _any(write, MUTATING):
            await self.webhooks.mutate(write, warnings)  # they can only reject a deletion
        if _any(write, BINDINGS):
            self._policies.review(write, warnings)
        if _any(write, VALIDATING):
            await self.webhooks.validate(write, warnings)


def _any(write: AdmissionAttributes, resource: str) -> bool:
    return next(write.api.storage.items(resource), None) is not None
