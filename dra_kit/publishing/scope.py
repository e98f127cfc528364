"""What differs between publishers: whose pools they are, and who else may publish them."""

from __future__ import annotations

from enum import Enum, auto
from typing import Any, Protocol

from msgspec import Struct

from dra_kit.author.devices.device import Device
from dra_kit.author.devices.inventory import Pool
from dra_kit.author.devices.provider import DeviceProvider
from dra_kit.author.devices.unserved import Serving
from dra_kit.author.driver import Driver
from dra_kit.errors import ConfigurationError
from dra_kit.kube.versions import ServerFeatures
from dra_kit.kubernetes.resource.api_model import OwnerReference
from dra_kit.slices.planning import DesiredPool


class Write(Enum):
    """What was just done to a slice."""

    DELETED = auto()
    UPDATED = auto()
    CREATED = auto()


class SliceScope(Protocol):
    """The slices that a publisher is responsible for: all of them that its selector finds."""

    @property
    def driver(self) -> str:
        """The driver's name."""
        ...

    @property
    def field_selector(self) -> str:
        """What selects its slices on the server."""
        ...

    async def features(self) -> ServerFeatures:
        """Return the release of the API server."""
        ...

    async def owner(self) -> OwnerReference | None:
        """Return the object whose deletion deletes the slices; None where there is none."""
        ...

    def forget(self) -> None:
        """Forget the facts of the server and of the owner, which may have changed."""
        ...

    def desired(self, pool: Pool[Device]) -> DesiredPool:
        """Return an author's pool as it is to be published."""
        ...

    async def publishable(
        self, pools: tuple[DesiredPool, ...]
    ) -> tuple[tuple[DesiredPool, ...], ConfigurationError | None]:
        """Return those of the pools that may be published, and why the others may not."""
        ...

    def left_to_another(self) -> bool:
        """Return whether another process publishes now; when it ends, this one does so again."""
        ...

    def wrote(self, what: Write) -> None:
        """Note that a slice was written."""
        ...


class Source(Struct, frozen=True):
    """A provider, and what becomes of what it finds.

    Attributes:
        provider: the author's.
        serving: what can be published of it.
        unnamed: the name of a pool without one; None where each pool must have one.
        drops_invalid: an invalid device is left out, instead of the whole inventory.
        rescan_every: seconds after which ``discover`` is started again; None means never.
    """

    provider: DeviceProvider[Any, Any, Any]
    serving: Serving
    unnamed: str | None
    drops_invalid: bool
    rescan_every: float | None


def node_source(driver: Driver[Any, Any], node_name: str) -> Source:
    """Return what a driver finds on a node; a pool without a name has the name of the node."""
    return Source(
        driver.provider,
        Serving("node", binds=driver.binder is not None),
        node_name,
        driver.invalid_devices == "drop",
        driver.rescan_every,
    )


def cluster_source(driver: Driver[Any, Any]) -> Source | None:
    """Return what a driver finds that belongs to no node, if it has a provider for that."""
    if driver.cluster_provider is None:
        return None
    return Source(
        driver.cluster_provider,
        Serving("cluster", binds=driver.binder is not None),
        None,
        driver.invalid_devices == "drop",
        driver.rescan_every,
    )
