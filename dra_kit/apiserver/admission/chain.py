"""The order of admission: mutating webhooks, policies, validating webhooks."""

from __future__ import annotations

from dra_kit.apiserver.admission.policies import PolicyAdmission
from dra_kit.apiserver.admission.requests import has_policies, has_webhooks
from dra_kit.apiserver.admission.webhooks import ServiceAddress, WebhookAdmission
from dra_kit.apiserver.api import AdmissionAttributes, Api
from dra_kit.kubernetes.values.json import Object


class AdmissionChain:
    """The :class:`dra_kit.apiserver.api.AdmissionPlugin` of an API: mutating webhooks, policies, validating webhooks.

    Attributes:
        services: where the Services of webhooks are; None when they cannot be reached.
    """

    def __init__(self) -> None:
        self.services: ServiceAddress | None = None
        self._webhooks: WebhookAdmission | None = None
        self._policies: PolicyAdmission | None = None

    async def mutate(self, write: AdmissionAttributes, warnings: list[str]) -> Object:
        """See :class:`dra_kit.apiserver.api.AdmissionPlugin`."""
        webhooks = self._webhooks_of(write.api)
        obj = write.obj if webhooks is None else await webhooks.mutate(write, warnings)
        assert obj is not None  # noqa: S101 - a deletion is only reviewed
        return obj

    async def review(self, write: AdmissionAttributes, warnings: list[str]) -> None:
        """See :class:`dra_kit.apiserver.api.AdmissionPlugin`."""
        webhooks = self._webhooks_of(write.api)
        if webhooks is not None and write.obj is None:
            await webhooks.mutate(write, warnings)  # nothing could change: the mutating ones are asked here, too
        policies = self._policies_of(write.api)
        if policies is not None:
            policies.review(write, warnings)
        if webhooks is not None:
            await webhooks.validate(write, warnings)

    async def close(self) -> None:
        """Close the connections."""
        if self._webhooks is not None:
            await self._webhooks.close()

    def _webhooks_of(self, api: Api) -> WebhookAdmission | None:
        if self._webhooks is None and has_webhooks(api):
            self._webhooks = WebhookAdmission()
        if self._webhooks is not None:
            self._webhooks.services = self.services
        return self._webhooks

    def _policies_of(self, api: Api) -> PolicyAdmission | None:
        if self._policies is None and has_policies(api):
            self._policies = PolicyAdmission()
        return self._policies
