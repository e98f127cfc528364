"""One network card for many claims; the addresses of its shares become known when a file tells them."""

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import dra_kit as dra

TOLD = Path("told.json")


class Rack(dra.DeviceProvider):
    """A card of 10 Gbit/s, of which each claim takes one, and what becomes known of it."""

    def discover(self) -> Iterator[Sequence[dra.Device]]:
        whole = dra.CapacityRequestPolicy(default="1G", valid_range=dra.CapacityRequestPolicyRange(min="1G"))
        bandwidth = dra.DeviceCapacity(value="10G", request_policy=whole)
        yield [dra.Device(name="nic-0", allow_multiple_allocations=True, capacity={"bandwidth": bandwidth})]
        while not self.context.stopping:
            if TOLD.exists():
                for item in json.loads(TOLD.read_text()):
                    self._tell(item)
                TOLD.unlink()
            time.sleep(0.1)

    def _tell(self, item: dict[str, str]) -> None:
        address = dra.NetworkDeviceData(interface_name="net1", ips=[item["ip"]])
        self.context.update(
            "nic-0",
            claim=item.get("claim"),
            share=item.get("share"),
            status=dra.DeviceStatus(network_data=address),
            metadata=dra.DeviceMetadata(network_data=address),
        )


class Porter(dra.Preparer):
    """The address is not known yet."""

    async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        return dra.Prepared(metadata=dra.DeviceMetadata(network_data=dra.NetworkDeviceData(interface_name="net1")))


driver = dra.Driver("nic.example", provider=Rack(), preparer=Porter())
