"""``Context`` as the controller implements it: it runs on no node, and prepares nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from dra_kit.author.context import Context, PreparedClaim
from dra_kit.author.preparing.prepared import DeviceMetadata, DeviceStatus
from dra_kit.author.stopping import Stopping
from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.process.metrics.registry import Metrics

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class ControllerContext(Context[Any]):
    """What an author's code in the controller gets, and what it may ask, from any thread.

    Args:
        driver: the driver's name.
        settings: the author's settings, already filled; None where the driver has none.
        metrics: of the process.

    Raises:
        ConfigurationError: what only a node has is read.
    """

    def __init__(self, driver: str, settings: Any, metrics: Metrics) -> None:
        self.driver = driver
        if settings is not None:
            self.settings = settings
        self._stopping = Stopping()
        self._metrics = metrics
        self._rescans: list[Callable[[], None]] = []

    def __getattr__(self, name: str) -> Any:
        if name in {"node", "state_dir"}:
            raise self._of_a_node(f"context.{name}")
        return super().__getattr__(name)  # type: ignore[misc]  # hidden from type checkers

    @property
    @override
    def stopping(self) -> Stopping:
        return self._stopping

    @property
    @override
    def metrics(self) -> CollectorRegistry:
        return self._metrics.registry

    @contextmanager
    def rescanning(self, restart: Callable[[], None]) -> Iterator[None]:
        """Have :meth:`rescan` call ``restart``, from any thread, while a generator of the author's runs."""
        self._rescans.append(restart)
        try:
            yield
        finally:
            self._rescans.remove(restart)

    @override
    def rescan(self) -> None:
        for restart in tuple(self._rescans):
            restart()

    @override
    def prepared(self) -> Mapping[str, PreparedClaim]:
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
    ) -> None:
        raise self._of_a_node("context.update")

    def _of_a_node(self, what: str) -> ConfigurationError:
        return ConfigurationError(
            f"driver {self.driver}: {what} belongs to a node, and this code runs in the controller; keep what it needs "
            "in the cluster, or in what is reached by context.settings"
        )
