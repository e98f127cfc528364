"""The settings of the driver. Each field is an option of ``dra-kit node``, such as ``--interfaces``."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

FAKE_DIR = Path("/tmp/nic-driver")


class Settings(BaseModel):
    """Which interfaces are offered (patterns of names, with commas), and where the hardware is."""

    interfaces: str = Field(
        default="", description="interfaces to offer as well as idle hardware, such as 'veth-*,eth2'"
    )
    exclude: str = Field(default="", description="interfaces that are never offered, such as 'ib*'")
    shared: str = Field(default="", description="interfaces that stay on the node; pods get macvlan interfaces on them")
    cni_plugins: str = Field(default="", description="CNI plugins that claims may use, such as 'bridge,host-local'")
    cni_bin: Path = Field(default=Path("/opt/cni/bin"), description="directory of the CNI plugins")
    cni_timeout: float = Field(default=1.5, description="seconds for a chain; a hook of the runtime must end in 1.8")
    host_netns: Path = Field(default=Path("/proc/self/ns/net"), description="the network namespace of the node")
    fake: Literal["", "two-cards"] = Field(default="", description="simulated hardware, in fake_dir; empty: real")
    fake_dir: Path = Field(default=FAKE_DIR, description="directory of the simulated hardware")


def patterns(setting: str) -> list[str]:
    """Return the patterns in a setting."""
    return [pattern.strip() for pattern in setting.split(",")]


def is_in(name: str, setting: str) -> bool:
    """Return whether one of the patterns in a setting matches the name of an interface."""
    return any(fnmatch(name, pattern) for pattern in patterns(setting))
