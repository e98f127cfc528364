"""``Context`` as the node implements it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dra_kit.author.context import Context, EffectInForce, NodeInfo, PreparedClaim
from dra_kit.author.preparing.prepared import DeviceMetadata, DeviceStatus
from dra_kit.author.stopping import Stopping
from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.claims.reports.facts import DeviceFacts
from dra_kit.node.state.store import Store
from dra_kit.process.metrics.registry import Metrics

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

Update = Callable[[DeviceFacts], None]


class NodeContext(Context[Any]):
    """What an author's code gets, and what it may ask, from any thread.

    Args:
        driver: the driver's name.
        node: the node this process runs on.
        state_dir: the author's own directory; made when missing.
        settings: the author's settings, already filled; None where the driver has none.
        store: where prepared claims are looked up.
        rescan: starts ``discover`` again.
        update: takes facts that came later.
        effects: tells of effects, from any thread.
        stopping: whether the process is asked to end.
        metrics: of the process.

    Raises:
        ConfigurationError: when the author's directory cannot be made.
    """

    def __init__(
        self,
        *,
        driver: str,
        node: NodeInfo,
        state_dir: Path,
        settings: Any,
        store: Store,
        rescan: Callable[[], None],
        update: Update,
        effects: Callable[[], Sequence[EffectInForce]],
        stopping: Stopping,
        metrics: Metrics,
    ) -> None:
        try:
            state_dir.mkdir(mode=0o750, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(
                f"the author's directory {state_dir} cannot be made: {error}; correct --state-dir"
            ) from error
        self.driver = driver
        self.node: NodeInfo = node
        self.state_dir = state_dir
        if settings is not None:
            self.settings = settings
        self._store = store
        self._update = update
        self._effects = effects
        self._stopping = stopping
        self._metrics = metrics
        self._rescan = rescan

    @property
    def stopping(self) -> Stopping:
        """See :class:`dra_kit.Context`."""
        return self._stopping

    @property
    def metrics(self) -> CollectorRegistry:
        """See :class:`dra_kit.Context`."""
        return self._metrics.registry

    def node_known(self, node: NodeInfo) -> None:
        """Note that the Node was read, with its labels."""
        self.node = node

    def rescan(self) -> None:
        """See :class:`dra_kit.Context`."""
        self._rescan()

    def prepared(self) -> Mapping[str, PreparedClaim]:
        """See :class:`dra_kit.Context`."""
        return {
            record.uid: PreparedClaim(
                namespace=record.namespace,
                name=record.name,
                uid=record.uid,
                states={(item.pool, item.device, item.share_id): item.state for item in record.devices},
            )
            for record in self._store.claims()
            if record.phase == "prepared"
        }

    def effects(self) -> Sequence[EffectInForce]:
        """See :class:`dra_kit.Context`."""
        return self._effects()

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
        """See :class:`dra_kit.Context`."""
        self._update(
            DeviceFacts(
                pool=pool or self.node.name,
                device=device,
                claim=claim if isinstance(claim, str | None) else claim.uid,
                share=share,
                status=status,
                metadata=metadata,
            )
        )
