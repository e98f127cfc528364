"""What is prepared on this node for whom, from the durable records and, where it can be asked, the kubelet."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from dra_kit.errors import DraKitError
from dra_kit.node.state.records import ClaimRecord
from dra_kit.node.state.store import Store
from dra_kit.plugin.pod_resources import held_devices, pod_resources_socket

if TYPE_CHECKING:
    from dra_kit.operation.who.device_use import DeviceUse

logger: logging.Logger = logging.getLogger(__name__)


class PreparedDevices:
    """The devices of prepared claims.

    Args:
        driver: the driver's name.
        node: the node's name.
        store: the records.
        kubelet_dir: where the kubelet's PodResources may be found; it is not mounted into every driver's pod.
    """

    def __init__(self, driver: str, node: str, store: Store, kubelet_dir: Path) -> None:
        self.driver = driver
        self.node = node
        self._store = store
        self._socket = pod_resources_socket(kubelet_dir)
        self._reported = ""

    def recorded(self) -> list[DeviceUse]:
        """As they are recorded: with the pods that claims were reserved for when they were prepared.

        Raises:
            StoreError: the records cannot be read.
        """
        return [use for record in self._store.claims() if record.phase == "prepared" for use in self._of(record)]

    async def in_use(self) -> list[DeviceUse]:
        """With containers, where the kubelet tells them; none of other drivers.

        Raises:
            StoreError: the records cannot be read.
        """
        uses = self.recorded()
        if not self._socket.is_socket():
            return uses
        try:
            held = await held_devices(self._socket)
        except DraKitError as error:
            if str(error) != self._reported:
                logger.warning("containers of devices not known", extra={"error": str(error), "code": error.code})
            self._reported = str(error)
            return uses
        self._reported = ""
        from dra_kit.operation.who.by_kubelet import held_use  # when somebody asks
        from dra_kit.operation.who.device_use import with_users

        own = {use.allocation for use in uses}
        # what the kubelet knows and no record does is being released, or was prepared by a release that is gone
        return with_users(uses, (user for user in map(held_use, held) if user.allocation in own))

    def _of(self, record: ClaimRecord) -> Iterator[DeviceUse]:
        from dra_kit.operation.who.device_use import DeviceUse  # when somebody asks

        for item in record.devices:
            use = DeviceUse(
                driver=self.driver,
                pool=item.pool,
                device=item.device,
                share=item.share_id or "",
                request=item.request,
                hardware_ids=item.hardware_ids,
                namespace=record.namespace,
                claim=record.name,
                claim_uid=record.uid,
                node=self.node,
            )
            yield from [replace(use, pod=pod) for pod in record.pods] or [use]
