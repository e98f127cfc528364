"""Intel Gaudi accelerators, with the network ports through which they talk to those of other machines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import BaseModel, Field
from typing_extensions import override

import dra_kit as dra


class Settings(BaseModel):
    """The settings of the driver, which are flags of ``dra-kit node``."""

    sysfs: Path = Field(default=Path("/sys"), description="where sysfs is mounted")
    poll_seconds: float = Field(default=5, gt=0, description="seconds between two readings of an accelerator's status")


class Gaudi(dra.Device):
    """An accelerator: its PCI function, its number in /dev/accel, and its place in the machine."""

    folder: Path
    number: int
    module: int


def read(file: Path) -> str:
    """Return the text of a file of sysfs."""
    return file.read_text(encoding="utf-8").strip()


def node(path: str, folder: Path) -> dra.DeviceNode:
    """Return a device file with the numbers that the kernel gave it."""
    major, minor = map(int, read(folder / "dev").split(":"))
    return dra.DeviceNode(path=path, type="c", major=major, minor=minor, permissions="rw")


class Gaudis(dra.DeviceProvider[Gaudi, None, Settings]):
    """Finds the accelerators of the kernel driver habanalabs."""

    @override
    def discover(self) -> Iterator[Sequence[Gaudi]]:
        links = self.context.settings.sysfs.glob("class/accel/accel[0-9]*")
        found = [link for link in links if (link / "device/driver").resolve().name == "habanalabs"]
        yield [self._gaudi(link) for link in sorted(found, key=lambda link: int(link.name.removeprefix("accel")))]

    def _gaudi(self, link: Path) -> Gaudi:
        folder = (link / "device").resolve()
        module = int(read(folder / "module_id"))
        up = [port for port in folder.glob("net/*/operstate") if read(port) == "up"]
        return Gaudi(
            name=re.sub(r"[:.]", "-", folder.name),
            attributes={
                "model": read(folder / "device_type"),
                "module": module,
                "scaleOutPorts": dra.observed(len(up)),  # an unplugged cable does not make it another device
                **dra.pci_attributes(folder),
            },
            folder=folder,
            number=int(link.name.removeprefix("accel")),
            module=module,
        )


class GaudiHealth(dra.HealthSource[Gaudi, None, Settings]):
    """What the kernel driver says about each accelerator: Operational, Malfunction, In reset, …"""

    policy = {
        "malfunction": dra.HealthRule(taint="NoExecute", sticky=True),
        "not-operational": dra.HealthRule(taint="NoSchedule", unhealthy_after=30),
    }

    @override
    def watch(self) -> Iterator[dra.Healthy | dra.Unhealthy]:
        while True:
            for gaudi in self.devices:
                status = self._status(gaudi)
                if status == "Operational":
                    yield dra.Healthy(gaudi)
                else:
                    yield dra.Unhealthy(gaudi, "malfunction" if status == "Malfunction" else "not-operational", status)
            if self.context.stopping.blocking_sleep(self.context.settings.poll_seconds):
                return

    @override
    def recovered(self, device: Gaudi, reason: str) -> bool:
        return self._status(device) == "Operational"

    def _status(self, gaudi: Gaudi) -> str:
        try:
            return read(gaudi.folder / "status")
        except OSError:  # the others are still watched
            return "gone"


class GaudiPreparer(dra.Preparer[dra.NoConfig, Gaudi]):
    """Gives a container its accelerators, or with admin access their control devices alone."""

    @override
    def prepare_claim(
        self, claim: dra.Claim, devices: Sequence[dra.AllocatedDevice[dra.NoConfig, Gaudi]]
    ) -> Sequence[dra.Prepared]:
        modules = sorted(device.advertised.module for device in devices if not device.admin_access)
        visible = dra.ContainerEdits(env={"HABANA_VISIBLE_MODULES": ",".join(map(str, modules))})
        return [
            dra.Prepared(
                device_nodes=self._nodes(device.advertised, control_only=device.admin_access),
                claim_edits=visible if modules else None,
                hardware_ids=[device.advertised.folder.name],
            )
            for device in devices
        ]

    def _nodes(self, gaudi: Gaudi, *, control_only: bool) -> list[dra.DeviceNode]:
        """Return the device files of an accelerator. The control device can only read its state."""
        number, folder = gaudi.number, gaudi.folder
        nodes = [node(f"/dev/accel/accel_controlD{number}", folder / f"accel/accel_controlD{number}")]
        if not control_only:
            nodes.append(node(f"/dev/accel/accel{number}", folder / f"accel/accel{number}"))
            verbs = sorted(folder.glob("infiniband_verbs/uverbs*"))  # RDMA through the accelerator's own ports
            nodes += [node(f"/dev/infiniband/{file.name}", file) for file in verbs]
        return nodes


driver = dra.Driver(
    "gaudi.intel.com",
    provider=Gaudis(),
    preparer=GaudiPreparer(),
    health=GaudiHealth(),
    settings=Settings,
    rescan_every=30,
)
