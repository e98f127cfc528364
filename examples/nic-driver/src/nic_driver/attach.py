"""What a pod gets: ``prepare`` decides and stores the decision, the hooks move the interface."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import dra_kit as dra
from typing_extensions import override

from nic_driver.config import NicConfig
from nic_driver.inventory import Host, Nic, read_move
from nic_driver.links import Move
from nic_driver.settings import Settings


class Planner(dra.Preparer[NicConfig, Nic, Host, Settings]):
    """Decides what happens to the interfaces of a claim. It changes nothing."""

    @override
    def prepare_claim(
        self, claim: dra.Claim, devices: Sequence[dra.AllocatedDevice[NicConfig, Nic]]
    ) -> list[dra.Prepared]:
        plans = [None if device.admin_access else plan(device) for device in devices]
        for name, count in Counter(move.interface for move in plans if move).items():
            if count > 1:
                raise dra.PermanentError(
                    f"claim {claim.name}: {count} interfaces would be named {name} in the pod; give each request its "
                    "own config with a different name"
                )
        return [self._prepared(device, move) for device, move in zip(devices, plans, strict=True)]

    @override
    def unprepare(self, claim: dra.ClaimReference, devices: Sequence[dra.PreparedDevice]) -> None:
        """Wait until the interfaces are on the node, if ``pod_stops`` has not moved them, and restore them.

        The kernel returns hardware when the network namespace ends, with its name in the pod. It deletes others.
        """
        for device in devices:
            move = read_move(device.state)
            if move is None or move.shared or self.hardware.network.restore(move):
                continue
            if not move.link.kind and self.hardware.pci.is_present(move.link.pci):
                raise dra.TransientError(
                    f"interface {move.link.name} is not on the node: the network namespace of its pod still exists; "
                    "the kubelet tries again"
                )

    def _prepared(self, device: dra.AllocatedDevice[NicConfig, Nic], move: Move | None) -> dra.Prepared:
        if move is None:
            return dra.Prepared()
        link = device.advertised.link
        return dra.Prepared(
            env={f"{device.env_name}_INTERFACE": move.interface},
            device_nodes=self.hardware.pci.rdma_nodes(link.pci) if link.pci and not move.shared else [],
            metadata=dra.DeviceMetadata(),  # pod_starts completes it
            state=move.model_dump(mode="json"),
        )


class Mover(dra.PodHooks[Nic, Host, Settings]):
    """Moves the interfaces of a pod into its network namespace and back."""

    @override
    def pod_starts(self, pod: dra.RuntimePod, devices: Sequence[dra.HeldDevice[Nic]]) -> Iterator[dra.DeviceFacts]:
        for device in devices:
            move = read_move(device.state)
            if move is None:
                continue
            if pod.netns is None:
                raise dra.PermanentError(
                    f"pod {pod} cannot get interface {move.link.name}: it uses the network of the host; remove "
                    "hostNetwork: true"
                )
            mac = self.hardware.network.attach(move, pod.netns)
            network = dra.NetworkDeviceData(interface_name=move.interface, ips=move.addresses, hardware_address=mac)
            ready = dra.Condition(type="Ready", status="True", reason="NetworkDeviceReady")
            yield dra.DeviceFacts(
                device=device,
                status=dra.DeviceStatus(conditions=[ready], network_data=network),
                metadata=dra.DeviceMetadata(network_data=network),
            )

    @override
    def pod_stops(self, pod: dra.RuntimePod, devices: Sequence[dra.HeldDevice[Nic]]) -> None:
        for device in devices:
            move = read_move(device.state)
            if move is not None and pod.netns is not None:
                self.hardware.network.detach(move, pod.netns)


def plan(device: dra.AllocatedDevice[NicConfig, Nic]) -> Move:
    """Return what happens to an interface: fields that the claim does not set are those of its DeviceClass."""
    link = device.advertised.link
    fields = {
        name: getattr(entry.config, name) for entry in device.configs for name in sorted(entry.config.model_fields_set)
    }
    config = NicConfig(**fields)
    own = link.name if link.name != "eth0" else "net0"  # each pod has an eth0
    return Move(
        link=link,
        interface=config.name or (f"{own[:10]}-{device.share_id[:4]}" if device.share_id else own),
        mtu=config.mtu or link.mtu,
        addresses=config.addresses,
        routes=config.routes,
        shared=bool(device.advertised.allow_multiple_allocations),
    )
