"""Who owns what the controller makes in the cluster: with its ClusterRole all of it goes when it is uninstalled."""

from __future__ import annotations

import logging

from dra_kit.errors import NotFound
from dra_kit.kube.client import Client
from dra_kit.kube.resources import CLUSTER_ROLES
from dra_kit.kubernetes.resource.api_model import OwnerReference

logger: logging.Logger = logging.getLogger(__name__)


class Owner:
    """The ClusterRole that owns what the controller makes, read once, and again after :meth:`forget`.

    Args:
        client: to ask with; needs ``get`` on that one ClusterRole.
        cluster_role: its name; None: nobody owns what is made.
    """

    def __init__(self, client: Client, cluster_role: str | None) -> None:
        self._client = client
        self._cluster_role = cluster_role
        self._known: OwnerReference | None = None
        self._logged = False

    async def reference(self) -> OwnerReference | None:
        """Return the owner; None where there is none.

        Raises:
            KubeError: it cannot be read.
        """
        if self._cluster_role is None:
            return None
        if self._known is None:
            try:
                role = await self._client.get(CLUSTER_ROLES, self._cluster_role)
            except NotFound:
                if not self._logged:
                    logger.warning(
                        "what the controller makes stays when it is uninstalled",
                        extra={"cluster_role": self._cluster_role, "remedy": "there is none of that name; correct "
                               "--cluster-role"},
                    )  # fmt: skip
                self._logged = True
                return None
            self._known = OwnerReference(
                api_version=CLUSTER_ROLES.api_version,
                kind=CLUSTER_ROLES.kind,
                name=self._cluster_role,
                uid=role["metadata"]["uid"],
            )
        return self._known

    def forget(self) -> None:
        """Read it again: it may be another one by now, of the same name."""
        self._known = None
