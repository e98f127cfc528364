"""What containers got from claims, for a screen."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from dra_kit.client.resources import PODS
from dra_kit.kubelet.cdi.spec import SpecEdits
from dra_kit.sandbox.timeline.records import ContainerStarted, ObjectChanged, Record


class FromClaims:
    """Knows it of every pod that is there; :meth:`read` is a reader of a timeline."""

    def __init__(self) -> None:
        self._edits: dict[str, dict[str, SpecEdits]] = {}

    @property
    def by_uid(self) -> Mapping[str, Collection[SpecEdits]]:
        """What each pod's containers got, by the pod's UID."""
        return {uid: tuple(edits.values()) for uid, edits in self._edits.items()}

    def read(self, record: Record) -> None:
        """Take a record."""
        match record:
            case ContainerStarted(container=container, from_claims=edits):
                self._edits.setdefault(container.pod.uid, {})[container.name] = edits
            case ObjectChanged(change="DELETED", resource=PODS.full_name, object=pod):
                self._edits.pop(pod["metadata"]["uid"], None)
            case _:
                pass
