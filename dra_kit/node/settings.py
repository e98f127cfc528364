"""The settings of the node role, from flags and environment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from dra_kit.errors import ConfigurationError


class NodeSettings(Struct, frozen=True):
    """Settings of ``dra-kit node``; the defaults are those of an ordinary node.

    Attributes:
        node_name: the Node object's name.
        kubeconfig: None for $KUBECONFIG, else the service account inside a cluster, else ~/.kube/config.
        kubelet_dir: the kubelet's root directory; the same path inside and outside of a container.
        cdi_dir: where container runtimes look for CDI files.
        nri_socket: the container runtime's socket for NRI; used by drivers with pod hooks.
        state_dir: durable state; None for ``plugins/<driver>`` below ``kubelet_dir``.
        pod_uid: of the driver's pod; makes socket names unique, so that rolling updates can overlap.
        dra_versions: versions of the DRA service to offer.
        boot_id: the file that identifies the current boot.
        deadline: seconds after which the kubelet gets the answer that a claim is not ready. The kubelet gives up after
            45 s (Kubernetes 1.37, cm/dra/plugin), so the answer must come before that.
        drain: seconds that calls of the kubelet may take to finish when the role stops; then they are cancelled.
        orphan_after: seconds that a claim must have been gone, at two checks, until its release without the kubelet.
        effects_interval: seconds between two checks whether effects still hold.
        leftovers_interval: seconds between two checks for other processes of the driver that have exited.
        repair_interval: seconds between two checks for files of claims that another process has removed or changed.
        settle: seconds that this process must have been able to serve before it takes over from an older one, if
            another process took over from that one and has exited; see :class:`dra_kit.node.processes.Takeover`.
        probe_address: where liveness and readiness are served, ``host:port`` or ``:port``; empty to disable.
        hang_timeout: seconds after which a call of the author's code that has not returned fails the liveness probe.
        child_environment: variables for the programs of ``ChildProcess`` effects, in addition to their own.
        check_device_nodes: whether device files are checked on the host before a claim counts as prepared; disable it
            if the process does not see the host's device files.
        simulated_hardware: whether any files count as device files, as in a sandbox; see ``simulated_in``.
        author: the author's own settings, already filled in.
    """

    node_name: str
    kubeconfig: Path | None = None
    kubelet_dir: Path = Path("/var/lib/kubelet")
    cdi_dir: Path = Path("/var/run/cdi")
    nri_socket: Path = Path("/var/run/nri/nri.sock")
    state_dir: Path | None = None
    pod_uid: str | None = None
    dra_versions: tuple[str, ...] = ("v1", "v1beta1")
    boot_id: Path = Path("/proc/sys/kernel/random/boot_id")
    deadline: float = 40.0
    drain: float = 8.0
    orphan_after: float = 600.0
    effects_interval: float = 30.0
    leftovers_interval: float = 2.0
    repair_interval: float = 5.0
    settle: float = 60.0
    probe_address: str = ""
    hang_timeout: float = 600.0
    child_environment: Mapping[str, str] = field(default_factory=dict)
    check_device_nodes: bool = True
    simulated_hardware: bool = False
    author: Any = field(default=None)

    def state(self, driver: str) -> Path:
        """Return the directory of the durable state."""
        return self.state_dir or self.kubelet_dir / "plugins" / driver

    def simulated_in(self) -> tuple[Path, ...] | None:
        """Return the folders with simulated device files: all that the author's settings name; None on a real node."""
        if not self.simulated_hardware:
            return None
        values = vars(self.author).values() if self.author is not None else ()
        return tuple(value.absolute() for value in values if isinstance(value, Path) and value.is_dir())

    def read_boot_id(self) -> str:
        """Return the id of the current boot.

        Raises:
            ConfigurationError: it cannot be read.
        """
        try:
            return self.boot_id.read_text().strip()
        except OSError as error:
            raise ConfigurationError(
                f"boot id {self.boot_id} cannot be read: {error.strerror or error}; mount /proc"
            ) from error

    def database(self, driver: str) -> Path:
        """Return the file of the durable state."""
        return self.state(driver) / "state.sqlite"
