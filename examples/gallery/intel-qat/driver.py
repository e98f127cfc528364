"""Intel QAT: virtual functions (VFs) of accelerators for cryptography or for compression."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import combinations
from pathlib import Path

from pydantic import BaseModel, Field
from typing_extensions import override

import dra_kit as dra


class Settings(BaseModel):
    """The settings of the driver, which are flags of ``dra-kit node``."""

    sysfs: Path = Field(default=Path("/sys"), description="where sysfs is mounted")
    # a device may take counters from two sets, and each pair of services is a set
    services: list[str] = Field(
        default=["sym;asym", "dc"], min_length=1, max_length=3, description="what claims may switch accelerators to"
    )


class Vf(dra.Device):
    """A VF, for as long as its accelerator has certain services."""

    function: str
    accelerator: Path
    group: str
    services: str


def read(file: Path) -> str:
    """Return the text of a file of sysfs."""
    return file.read_text(encoding="utf-8").strip()


class Services(dra.Effect, id="services"):
    """The services of an accelerator, which all its VFs share. They stay until a claim needs others."""

    accelerator: Path
    services: str

    @override
    def keys(self) -> Iterable[str]:
        return [f"accelerator/{self.accelerator.name}"]

    @override
    def title(self) -> str:
        return f"services {self.services} of accelerator {self.accelerator.name}"

    @override
    def apply(self, previous: None) -> None:
        folder = self.accelerator / "qat"
        if self.holds(None):
            return
        if read(folder / "state") == "up":
            (folder / "state").write_text("down", encoding="utf-8")
        (folder / "cfg_services").write_text(self.services, encoding="utf-8")
        (folder / "state").write_text("up", encoding="utf-8")

    @override
    def holds(self, outcome: None) -> bool:
        folder = self.accelerator / "qat"
        active = set(read(folder / "cfg_services").split(";"))  # the kernel may answer in another order
        return read(folder / "state") == "up" and active == set(self.services.split(";"))

    @override
    def revert(self, outcome: None) -> None:
        """Leave the services: switching resets the accelerator, and the next claim may need the same."""


class Vfs(dra.DeviceProvider[Vf, None, Settings]):
    """Finds VFs that are bound to vfio-pci, and publishes each once for all services that it can have."""

    @override
    def discover(self) -> Iterator[dra.Inventory[Vf]]:
        allowed = self.context.settings.services
        links = self.context.settings.sysfs.glob("bus/pci/drivers/*/*:*/qat")
        found = [link.parent.resolve() for link in links if (link.parent / "virtfn0").exists()]
        accelerators = sorted(found, key=lambda folder: folder.name)
        # the scheduler prefers the first services
        devices = [vf for services in allowed for folder in accelerators for vf in self._vfs(folder, services)]
        counters = []
        for folder in accelerators:
            count = len(list(folder.glob("virtfn*")))
            for pair in combinations(allowed, 2):
                guards = {f"vf-{number}": count for number in range(count)}
                counters.append(dra.CounterSet(name=self._set_name(folder, pair), counters=guards))
        yield dra.Inventory(pools=[dra.Pool(counter_sets=counters, devices=devices)])

    def _vfs(self, folder: Path, services: str) -> Iterator[Vf]:
        links = sorted(folder.glob("virtfn*"), key=lambda link: int(link.name.removeprefix("virtfn")))
        for number, link in enumerate(links):
            function = link.resolve()
            if (function / "driver").resolve().name != "vfio-pci":
                continue  # used by the kernel itself
            yield Vf(
                name=f"{self._slug(function.name)}-{self._slug(services)}",
                attributes={
                    "services": services,
                    **{name: name in services.split(";") for name in ("sym", "asym", "dc", "dcc")},
                    "accelerator": folder.name,
                    **dra.pci_attributes(function),
                },
                consumes_counters=list(self._guards(folder, services, number, len(links))),
                function=function.name,
                accelerator=folder,
                group=(function / "iommu_group").resolve().name,
                services=services,
            )

    def _guards(self, folder: Path, services: str, number: int, count: int) -> Iterator[dra.DeviceCounterConsumption]:
        """Exclude the VFs with other services: of each pair, one takes its own guard, the other a part of all."""
        for pair in combinations(self.context.settings.services, 2):
            if services == pair[0]:
                taken = {f"vf-{number}": count}
            elif services == pair[1]:
                taken = {f"vf-{other}": 1 for other in range(count)}
            else:
                continue
            yield dra.DeviceCounterConsumption(counter_set=self._set_name(folder, pair), counters=taken)

    def _set_name(self, folder: Path, pair: tuple[str, str]) -> str:
        return f"{self._slug(folder.name)}-{self._slug(pair[0])}-or-{self._slug(pair[1])}"

    def _slug(self, text: str) -> str:
        return re.sub(r"[:.;]", "-", text)


class VfPreparer(dra.Preparer[dra.NoConfig, Vf, None, Settings]):
    """Gives a container its VFs, which a program drives itself through VFIO."""

    @override
    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice[dra.NoConfig, Vf]) -> dra.Prepared:
        vf = device.advertised
        device.ensure(Services(accelerator=vf.accelerator, services=vf.services)).result()
        major, minor = map(int, read(self.context.settings.sysfs / "class/vfio" / vf.group / "dev").split(":"))
        return dra.Prepared(
            device_nodes=[dra.DeviceNode(path=f"/dev/vfio/{vf.group}", type="c", major=major, minor=minor)],
            # the container of all IOMMU groups has fixed numbers: Documentation/admin-guide/devices.txt
            claim_edits=dra.ContainerEdits(
                device_nodes=[dra.DeviceNode(path="/dev/vfio/vfio", type="c", major=10, minor=196)]
            ),
            hardware_ids=[vf.function],
        )


driver = dra.Driver(
    "qat.intel.com",
    provider=Vfs(),
    preparer=VfPreparer(),
    effects=[Services],
    settings=Settings,
    rescan_every=30,
)
