"""The driver: CPUs for claims, modelled on kubernetes-sigs/dra-driver-cpu."""

from __future__ import annotations

import dra_kit as dra

from cpu_driver.hooks import CpuHooks
from cpu_driver.machine import open_machine
from cpu_driver.preparer import CpuPreparer, TakeCpus
from cpu_driver.provider import CpuProvider
from cpu_driver.settings import Settings

hooks = CpuHooks()

driver = dra.Driver(
    "dra.cpu",
    provider=CpuProvider(),
    preparer=CpuPreparer(hooks.grow),
    pod_hooks=hooks,
    effects=[TakeCpus],
    settings=Settings,
    hardware=open_machine,
)
