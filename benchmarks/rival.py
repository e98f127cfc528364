"""Runs the rival, the Go example driver, with its best settings; README.md describes how to build it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.world import NODE, World, until_idle
from dra_kit.kubernetes.release import UNMODIFIED
from dra_kit.sandbox.kubelet.plugin_manager import PluginManager

DRIVER = "gpu.example.com"
DEVICE = "gpu"
DEVICES = 128


@asynccontextmanager
async def running(world: World, binary: Path) -> AsyncIterator[PluginManager]:
    """Run the idle driver and a kubelet that has registered it."""
    directory = world.directory / "rival"
    registry, plugins, cdi = directory / "plugins_registry", directory / "plugins", directory / "cdi"
    for path in (registry, plugins / DRIVER, cdi):
        path.mkdir(parents=True, exist_ok=True)
    settings = {
        "node-name": NODE,
        "kubeconfig": world.kubeconfig,
        "num-devices": DEVICES,
        "cdi-root": cdi,
        "kubelet-registrar-directory-path": registry,
        "kubelet-plugins-directory-path": plugins,
        # its default limit is five requests per second
        "kube-api-qps": 10_000,
        "kube-api-burst": 10_000,
    }
    command = [binary.as_posix(), *(f"--{name}={value}" for name, value in settings.items())]
    with (directory / "log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
    try:
        async with PluginManager(directory, release=UNMODIFIED) as kubelet:
            await kubelet.wait_for_plugin(DRIVER)
            await until_idle(process.pid)
            yield kubelet
    finally:
        process.terminate()
        await process.wait()
        await world.withdraw(DRIVER)
