"""A ResourceClaim by name and identity: how kubelet, node and author speak of one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClaimReference:
    """A claim by name and identity; all that is left of it when it is released."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"
