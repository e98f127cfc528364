"""``Machine``: the CPUs of the node, and the groups of them that are devices."""

from __future__ import annotations

import json
from collections.abc import Mapping
from operator import attrgetter
from typing import Literal

import dra_kit as dra

from cpu_driver.settings import NodeSettings, Settings
from cpu_driver.topology import Topology, parse_cpus, read_profile, read_sysfs


class Machine:
    """The CPUs of the node; ``self.hardware`` of provider, effects and hooks.

    Attributes:
        topology: all that are online.
        reserved: those that no claim gets.
        available: the others.
        devices: the available CPUs by name of the device, in the order of publication. The names are those of
            kubernetes-sigs/dra-driver-cpu.
    """

    def __init__(self, topology: Topology, settings: Settings) -> None:
        self.topology = topology
        self.reserved = parse_cpus(settings.reserved_cpus) & topology.online
        self.available = topology.online - self.reserved
        self.devices: Mapping[str, frozenset[int]]
        if settings.mode == "individual":
            # in the order of cores, so that the scheduler, which takes the first devices, gives claims whole cores
            cores = sorted((sorted(core & self.available) for core in topology.cores), key=lambda core: core[:1])
            numbers = [number for core in cores for number in core]
            self.devices = {f"cpudev{index:03d}": frozenset({number}) for index, number in enumerate(numbers)}
        else:
            kind, attribute = ("socket", "socket") if settings.group_by == "socket" else ("numa", "numa_node")
            number_of = attrgetter(attribute)
            groups = {number_of(topology.by_number[min(cpus)]): cpus for cpus in topology.groups(number_of)}
            left = {number: cpus & self.available for number, cpus in sorted(groups.items())}
            self.devices = {f"cpudev{kind}{number:03d}": cpus for number, cpus in left.items() if cpus}


def open_machine(context: dra.Context[Settings]) -> Machine:
    """Read the CPUs for ``Driver(hardware=…)``, once per process: restart the driver when CPUs go online or offline.

    Raises:
        ConfigurationError: the kubelet assigns CPUs itself, or the topology cannot be read.
    """
    settings = context.settings
    check_manager("cpu", settings)
    try:
        if settings.sysfs.is_file():
            return Machine(read_profile(settings.sysfs.read_text(encoding="utf-8")), settings)
        return Machine(read_sysfs(settings.sysfs), settings)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise dra.ConfigurationError(
            f"topology {settings.sysfs} cannot be read: {reason}; set --sysfs to the root of sysfs, or to a file as in "
            "the folder topologies"
        ) from None


def check_manager(resource: Literal["cpu", "memory"], settings: NodeSettings) -> None:
    """Refuse to run beside the kubelet's own manager, which would assign the same CPUs or the same memory.

    The kubelet writes its policy into ``cpu_manager_state`` and ``memory_manager_state`` (Kubernetes 1.37,
    pkg/kubelet/cm/cpumanager and memorymanager). The policies are ``none`` and ``static``, or ``None`` and ``Static``.

    Raises:
        ConfigurationError: its policy is static, or unknown.
    """
    path = settings.kubelet_root / f"{resource}_manager_state"
    try:
        state = json.loads(path.read_bytes())
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise dra.ConfigurationError(
            f"the policy of the kubelet's {resource} manager is unknown: {path} cannot be read: {error}; set "
            "--kubelet-root to the directory of the kubelet"
        ) from None
    if isinstance(state, dict) and str(state.get("policyName")).lower() == "static":
        none = "none" if resource == "cpu" else "None"
        raise dra.ConfigurationError(
            f"the kubelet's {resource} manager is static ({path}): it would assign to other containers what claims "
            f"have; set {resource}ManagerPolicy: {none} in the kubelet's configuration, remove that file while the "
            "kubelet is stopped, and restart this driver"
        )
