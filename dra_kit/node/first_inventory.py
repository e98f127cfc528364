"""The devices that a driver finds on this machine, without a cluster and without a node role."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from typing_extensions import override

from dra_kit.author.calls import call, describe_raised_error
from dra_kit.author.context import Context, NodeInfo, PreparedClaim, Stopping
from dra_kit.author.device import Device
from dra_kit.author.driver import Driver
from dra_kit.author.inventory import Inventory
from dra_kit.author.prepared import DeviceMetadata, DeviceStatus
from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.context import HardwareHandle
from dra_kit.slices.discovery import Discovery
from dra_kit.slices.inventory import CurrentInventory, node_source

NODE: Final = "this-node"
"""The node name used for a machine that is not a node."""
_POLL_SECONDS: Final = 0.02
_REMEDY: Final = "run this where its devices are, or correct it"


def discover_once(
    driver: Driver[Any, Any], settings: Any, timeout: float, node: NodeInfo | None = None
) -> Inventory[Device]:
    """Return the first complete inventory of a driver's provider.

    Args:
        driver: the driver; its provider is started as in the node role.
        settings: the author's settings.
        timeout: seconds that the provider gets.
        node: the node data for the provider; None for this machine, which is not a node.

    Raises:
        ConfigurationError: the provider fails, or yields nothing in time.
    """
    node = node or NodeInfo(NODE)
    with tempfile.TemporaryDirectory(prefix="dra-kit-") as folder:
        context = _OnceContext(driver.name, node, Path(folder), settings)
        return asyncio.run(_first(driver, context, timeout))


async def _first(driver: Driver[Any, Any], context: Context[Any], timeout: float) -> Inventory[Device]:
    provider = type(driver.provider).__name__
    current = CurrentInventory()
    discovery = asyncio.ensure_future(_started(driver, context, current))
    try:
        async with asyncio.timeout(timeout):
            while current.latest is None:
                if discovery.done():
                    await discovery
                if current.problem:
                    raise ConfigurationError(f"{provider}.discover failed: {current.problem}; {_REMEDY}")
                await asyncio.sleep(_POLL_SECONDS)
    except TimeoutError:
        raise ConfigurationError(
            f"{provider}.discover yielded nothing in {timeout:g} s; give it the settings that it needs, or more time "
            "with --timeout"
        ) from None
    finally:
        discovery.cancel()
        with contextlib.suppress(asyncio.CancelledError, ConfigurationError):
            await discovery
    return current.latest


async def _started(driver: Driver[Any, Any], context: Context[Any], current: CurrentInventory) -> None:
    provider = type(driver.provider)
    try:
        await HardwareHandle(driver).make(context)
    except ConfigurationError:
        raise
    except Exception as error:  # author's code may raise anything
        raise ConfigurationError(
            f"Driver(hardware=…) {describe_raised_error(error, provider.__module__)}; {_REMEDY}"
        ) from error
    driver.provider.context = context
    try:
        await call(driver.provider.startup, context)
    except Exception as error:  # likewise
        text = f"{provider.__name__}.startup {describe_raised_error(error, provider.__module__)}; {_REMEDY}"
        raise ConfigurationError(text) from error
    await Discovery(node_source(driver, context.node.name), current).run(asyncio.Event())


class _OnceContext(Context[Any]):
    """The context of a provider that is run once."""

    def __init__(self, driver: str, node: NodeInfo, state_dir: Path, settings: Any) -> None:
        self.driver = driver
        self.node = node
        self.state_dir = state_dir
        self._stopping = Stopping()
        if settings is not None:
            self.settings = settings

    @property
    @override
    def stopping(self) -> Stopping:
        return self._stopping

    @override
    def rescan(self) -> None:
        """Do nothing: a single inventory is enough."""

    @override
    def prepared(self) -> Mapping[str, PreparedClaim]:
        """Return nothing: without claims, nothing is prepared."""
        return {}

    @override
    def update(
        self,
        device: str,
        *,
        pool: str | None = None,
        claim: ClaimReference | PreparedClaim | str | None = None,
        share: str | None = None,
        status: DeviceStatus | None = None,
        metadata: DeviceMetadata | None = None,
        wait: bool = False,
    ) -> None:
        """Do nothing: no claim can use the update."""
