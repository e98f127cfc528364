"""Keeps containers from starting without the driver's hooks, even while the driver is not connected to the runtime."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Final

from msgspec import Struct

from dra_kit.author.prepared import Mount
from dra_kit.errors import StoreError
from dra_kit.kubelet.cdi.spec import Spec

IN_CONTAINER: Final = PurePosixPath("/var/run/dra-kit")
_MISSING: Final = "driver-is-not-connected-to-the-container-runtime"
"""Name of the file that never exists: the runtime's error shows it."""
_PRESENT: Final = "hooks-have-run"
_OPTIONS: Final = ("ro", "bind")


class HookGuard(Struct, frozen=True):
    """The guard of the claims of a driver with pod hooks.

    The CDI spec of a claim mounts a file that does not exist, so that no container of the claim starts. The answer to
    the runtime's CreateContainer mounts another file at the same place, which replaces that mount: containerd and CRI-O
    apply it after CDI (containerd 2.4 ``WithContainerAdjustment``, CRI-O 1.34 ``createSandboxContainer``), and start
    the container with it. No file has to be created or removed for a container, so nothing is left after a kill -9.

    NRI calls no plugin that is away, and starts the container without it; containerd's ``required_plugins`` covers
    CreateContainer, if an administrator configures it.

    Attributes:
        directory: in the durable state, with the same path for this process and the container runtime.
        driver: its name.
    """

    directory: Path
    driver: str

    def mount(self, claim_uid: str) -> Mount:
        """Return the mount for the claim's CDI spec, which fails."""
        return self._mount(claim_uid, _MISSING)

    def replacement(self, claim_uid: str) -> Mount:
        """Return the mount that replaces it in a container whose hooks have run."""
        return self._mount(claim_uid, _PRESENT)

    def lifted(self, spec: Spec) -> Spec:
        """Return a claim's CDI spec without the mount: the driver has no hooks any more, so nothing replaces it."""
        edits = spec.container_edits
        kept = tuple(item for item in edits.mounts if item.host_path != self._host_path(_MISSING))
        if kept == edits.mounts:
            return spec
        return spec.model_copy(update={"container_edits": edits.model_copy(update={"mounts": kept})})

    def path(self, claim_uid: str) -> str:
        """Return the place of both in a container."""
        return str(IN_CONTAINER / self.driver / claim_uid)

    def create(self) -> None:
        """Create the file that the replacement mounts.

        Raises:
            StoreError: it cannot be written.
        """
        try:
            self.directory.mkdir(mode=0o755, parents=True, exist_ok=True)
            (self.directory / _PRESENT).touch(mode=0o644)
        except OSError as error:
            raise StoreError(
                f"{self.directory / _PRESENT} cannot be written: {error.strerror or error}; check that the disk is "
                "writable and not full (--state-dir)"
            ) from error

    def _mount(self, claim_uid: str, name: str) -> Mount:
        return Mount(host_path=self._host_path(name), container_path=self.path(claim_uid), options=_OPTIONS)

    def _host_path(self, name: str) -> str:
        return str(self.directory / name)
