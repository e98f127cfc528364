"""Admission plugins in the order of a real API server."""

from __future__ import annotations

from dra_kit.apiserver.admission.policies.plugin import Policies
from dra_kit.apiserver.admission.webhooks import Webhooks
from dra_kit.apiserver.api import Attributes
from dra_kit.values.json import Object


class Chain:
    """The :class:`dra_kit.apiserver.api.Admission` of an API: mutating webhooks, policies, validating webhooks.

    Attributes:
        webhooks: those that configurations name.
    """

    def __init__(self) -> None:
        self.webhooks: Webhooks = Webhooks()
        self._policies = Policies()

    async def mutate(self, write: Attributes, warnings: list[str]) -> Object:
        """See :class:`dra_kit.apiserver.api.Admission`."""
        obj = await self.webhooks.mutate(write, warnings)
        assert obj is not None  # noqa: S101 - a deletion is only reviewed
        return obj

    async def review(self, write: Attributes, warnings: list[str]) -> None:
        """See :class:`dra_kit.apiserver.api.Admission`."""
        if write.obj is None:  # nothing that could change: the mutating ones are asked here too
            await self.webhooks.mutate(write, warnings)
        self._policies.review(write, warnings)
        await self.webhooks.validate(write, warnings)

    async def close(self) -> None:
        """Close the connections."""
        await self.webhooks.close()
