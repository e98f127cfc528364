"""Mappings whose KeyError says what there is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn, TypeVar

from msgspec.structs import replace

from dra_kit.sandbox.stories.expectations.facts import PodFacts
from dra_kit.text import did_you_mean

T = TypeVar("T")

__tracebackhide__ = True  # pytest shows the test's own line instead


class Named(dict[str, T]):
    """Things by name.

    Args:
        what: what the error begins with and the name follows, such as "pod guest has no container".
        items: the things.
    """

    def __init__(self, what: str, items: Mapping[str, T]) -> None:
        super().__init__(items)
        self._what = what

    def __missing__(self, name: str) -> NoReturn:
        there_is = ", ".join(sorted(self)) or "nothing"
        raise KeyError(f"{self._what} {name}{did_you_mean(name, self) or ';'} there is {there_is}")


def _named(what: str, items: Mapping[str, T] | None) -> Named[T] | None:
    return None if items is None else Named(what, items)


def named(pod: PodFacts, name: str) -> PodFacts:
    """Return a pod whose containers and their variables, device files and mounts are :class:`Named`."""
    containers = {
        key: replace(
            item,
            environment=Named(f"container {key} has no variable", item.environment),
            device_nodes=_named(f"container {key} has no device file", item.device_nodes),
            mounts=_named(f"container {key} has no mount", item.mounts),
        )
        for key, item in pod.containers.items()
    }
    return replace(pod, containers=Named(f"pod {name} has no started container", containers))
