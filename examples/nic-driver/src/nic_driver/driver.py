"""The driver: pods get network interfaces of their node. ``prepare`` decides and stores what; hooks carry it out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import dra_kit as dra
from typing_extensions import override

from nic_driver.config import CniConfig, NicConfig
from nic_driver.hardware import Move, Pci
from nic_driver.inventory import PLAN, Host, Inventory, Nic
from nic_driver.settings import Settings, patterns
from nic_driver.simulated import SimulatedNetwork, make_tree

Allocated = dra.AllocatedDevice[NicConfig | CniConfig]


class Planner(dra.Preparer[NicConfig | CniConfig, dra.Device, Host, Settings]):
    """Decides what happens to the interfaces of a claim. It changes nothing."""

    @override
    def prepare_claim(self, claim: dra.Claim, devices: Sequence[Allocated]) -> list[dra.Prepared]:
        plans = [None if device.admin_access else self._plan(claim, device) for device in devices]
        for name, count in Counter(plan.interface for plan in plans if plan).items():
            if count > 1:
                raise dra.PermanentError(
                    f"claim {claim.name}: {count} interfaces would be named {name} in the pod; give each request its "
                    "own config with a different name"
                )
        return [self._prepared(device, plan) for device, plan in zip(devices, plans, strict=True)]

    @override
    def unprepare(self, claim: dra.ClaimReference, devices: Sequence[dra.PreparedDevice]) -> None:
        """Undo what ``pod_stops`` has not undone: wait until interfaces are on the node, and leave networks.

        The kernel returns hardware when the network namespace ends, with its name in the pod. It deletes others.
        """
        self.hardware.plugins.detach(claim)
        for device in devices:
            move = PLAN.validate_python(device.state)
            if not isinstance(move, Move) or move.shared or self.hardware.network.restore(move):
                continue
            if not move.link.kind and self.hardware.pci.folder(move.link.pci).exists():
                raise dra.TransientError(
                    f"interface {move.link.name} is not on the node: the network namespace of its pod still exists; "
                    "the kubelet tries again"
                )

    def _plan(self, claim: dra.Claim, device: Allocated) -> Move | CniConfig:
        if isinstance(device.advertised, Nic):
            return plan_move(device.advertised, device.configs, device.share_id)
        if not isinstance(device.config, CniConfig):
            raise dra.PermanentError(
                f"claim {claim.name}: request {device.request} names no network: it has no CniConfig; add one to the "
                "claim or to its DeviceClass"
            )
        self.hardware.plugins.check(device.config.conflist)
        return device.config

    def _prepared(self, device: Allocated, plan: Move | CniConfig | None) -> dra.Prepared:
        if plan is None:
            return dra.Prepared()
        link = plan.link if isinstance(plan, Move) and not plan.shared else None
        return dra.Prepared(
            env={f"{device.env_name}_INTERFACE": plan.interface},
            device_nodes=self.hardware.pci.rdma_nodes(link.pci) if link and link.pci else [],
            metadata=dra.DeviceMetadata(),  # pod_starts completes it
            state=plan.model_dump(mode="json"),
        )


class Mover(dra.PodHooks[dra.Device, Host, Settings]):
    """Gives a pod its interfaces, and takes them back."""

    @override
    def pod_starts(self, pod: dra.RuntimePod, devices: Sequence[dra.HeldDevice]) -> Iterator[dra.DeviceFacts]:
        for device in devices:
            if not (plan := PLAN.validate_python(device.state)):
                continue
            if pod.netns is None:
                raise dra.PermanentError(
                    f"pod {pod} cannot get interface {plan.interface}: it uses the network of the host; remove "
                    "hostNetwork: true"
                )
            if isinstance(plan, Move):
                network, data = self.hardware.network.attach(plan, pod.netns), None
            else:
                result = self.hardware.plugins.attach(plan.conflist, plan.interface, device.claim, pod)
                network, data = result.network_data(plan.interface), result.model_dump()
            ready = dra.Condition(type="Ready", status="True", reason="NetworkDeviceReady")
            yield dra.DeviceFacts(
                device=device,
                status=dra.DeviceStatus(conditions=[ready], network_data=network, data=data),
                metadata=dra.DeviceMetadata(network_data=network),
            )

    @override
    def pod_stops(self, pod: dra.RuntimePod, devices: Sequence[dra.HeldDevice]) -> None:
        for device in devices:
            plan = PLAN.validate_python(device.state)
            if isinstance(plan, CniConfig):
                self.hardware.plugins.detach(device.claim, pod)
            elif plan is not None and pod.netns is not None:
                self.hardware.network.detach(plan, pod.netns)


def plan_move(nic: Nic, configs: Sequence[dra.ConfigEntry[NicConfig | CniConfig]], share: str | None) -> Move:
    """Return what happens to an interface: fields that the claim does not set are those of its DeviceClass."""
    fields = {name: getattr(entry.config, name) for entry in configs for name in sorted(entry.config.model_fields_set)}
    config, link = NicConfig(**fields), nic.link
    own = link.name if link.name != "eth0" else "net0"  # each pod has an eth0
    return Move(
        link=link,
        interface=config.name or (f"{own[:10]}-{share[:4]}" if share else own),
        mtu=config.mtu or link.mtu,
        addresses=config.addresses,
        routes=config.routes,
        shared=bool(nic.allow_multiple_allocations),
    )


def open_host(context: dra.Context[Settings]) -> Host:
    """Return the hardware of this node: real, or simulated with ``--fake``."""
    settings = context.settings
    plugins = dra.CniPlugins(
        context.state_dir / "cni",
        patterns(settings.cni_plugins),
        path=settings.cni_bin,
        timeout=settings.cni_timeout,
        enter=() if settings.fake else ("nsenter", f"--net={settings.host_netns}"),
    )
    if settings.fake:
        make_tree(settings.fake, settings.fake_dir)
        pci = Pci(settings.fake_dir / "sys", settings.fake_dir / "dev")
        return Host(SimulatedNetwork(settings.fake_dir), pci, plugins)
    from nic_driver.netlink import Netlink  # imports pyroute2, which simulated hardware does not need

    return Host(Netlink(settings.host_netns), Pci(), plugins)


driver = dra.Driver(
    "nic.example.com",
    provider=Inventory(),
    preparer=Planner(),
    pod_hooks=Mover(),
    hardware=open_host,
    settings=Settings,
    rescan_every=5,
)
