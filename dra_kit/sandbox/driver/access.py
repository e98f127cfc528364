"""How a role of a driver reaches the API server of a sandbox."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from dra_kit.client.credentials import Credentials


class Access(Struct, frozen=True):
    """How one role reaches the API server.

    Attributes:
        credentials: of one in the sandbox's process.
        kubeconfig: of one in a process of its own.
    """

    credentials: Credentials
    kubeconfig: Path
