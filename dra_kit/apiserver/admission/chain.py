"""Admission plugins in the order of a real API server; each is loaded once there is something that it asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dra_kit.apiserver.admission.configured import has_policies, has_webhooks
from dra_kit.apiserver.api import Api, Attributes
from dra_kit.kubernetes.values.json import Object

if TYPE_CHECKING:
    from dra_kit.apiserver.admission.policies.plugin import Policies
    from dra_kit.apiserver.admission.webhooks import ServiceAddress, Webhooks


class Chain:
    """The :class:`dra_kit.apiserver.api.Admission` of an API: mutating webhooks, policies, validating webhooks.

    Attributes:
        services: where the Services of webhooks are; None when they cannot be reached.
    """

    def __init__(self) -> None:
        self.services: ServiceAddress | None = None
        self._webhooks: Webhooks | None = None
        self._policies: Policies | None = None

    async def mutate(self, write: Attributes, warnings: list[str]) -> Object:
        """See :class:`dra_kit.apiserver.api.Admission`."""
        webhooks = self._webhooks_of(write.api)
        obj = write.obj if webhooks is None else await webhooks.mutate(write, warnings)
        assert obj is not None  # noqa: S101 - a deletion is only reviewed
        return obj

    async def review(self, write: Attributes, warnings: list[str]) -> None:
        """See :class:`dra_kit.apiserver.api.Admission`."""
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

    def _webhooks_of(self, api: Api) -> Webhooks | None:
        if self._webhooks is None and has_webhooks(api):
            from dra_kit.apiserver.admission.webhooks import Webhooks

            self._webhooks = Webhooks()
        if self._webhooks is not None:
            self._webhooks.services = self.services
        return self._webhooks

    def _policies_of(self, api: Api) -> Policies | None:
        if self._policies is None and has_policies(api):
            from dra_kit.apiserver.admission.policies.plugin import Policies

            self._policies = Policies()
        return self._policies
