"""A story as it runs: steps, each with what is done and what must become true then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from dra_kit.sandbox.stories.manifests import Manifest

if TYPE_CHECKING:  # files without a story need neither
    from dra_kit.sandbox.stories.completion import Completion
    from dra_kit.sandbox.stories.story_model import DriverActions, Expectation


class Step(Struct, frozen=True):
    """One phase of a story: what is done, in this order, and what must become true.

    Attributes:
        manifests: objects to create.
        edits: the driver's settings whose files change, and the new text of each.
        health: reasons with messages that make devices ill; None for one that ends.
        deletes: objects to delete, as ``<kind>/<name>``.
        expectation: what must be true then; None where ``completion`` takes its place.
        actions: what is done to a driver first; None for nothing.
        driver: the name of the driver whose actions, edits and health these are; empty for the only one.
        completion: takes the place of an expectation that nobody has written.
    """

    manifests: tuple[Manifest, ...]
    edits: Mapping[str, str]
    health: Mapping[str, Mapping[str, str | None]]
    deletes: tuple[str, ...]
    expectation: Expectation | None = None
    actions: DriverActions | None = None
    driver: str = ""
    completion: Completion | None = None

    @property
    def acts(self) -> bool:
        """Whether it does anything that is done to one driver."""
        actions = self.actions
        reboots = actions is not None and actions.reboot is not None and not actions.reboot.lost
        return bool((actions is not None and not reboots) or self.edits or self.health)


class Story(Struct, frozen=True):
    """A story as it was read.

    Attributes:
        name: of its folder.
        namespace_labels: of the namespace it runs in.
        steps: at least one.
        leftovers: regular expressions of what may remain after it.
        targets: of further drivers that it needs.
        own_namespace: it runs in a namespace of its own; else its objects are applied where they say, and one that the
            API server refuses is an error of whoever wrote it.
    """

    name: str
    namespace_labels: Mapping[str, str]
    steps: tuple[Step, ...]
    leftovers: tuple[str, ...]
    targets: tuple[str, ...] = ()
    own_namespace: bool = True

    @property
    def killed(self) -> frozenset[str]:
        """Names of the drivers that it kills, which need processes of their own then; "" for the only one."""
        return frozenset(
            step.driver for step in self.steps if step.actions is not None and step.actions.kill is not None
        )

    @property
    def replaces(self) -> bool:
        """Whether another copy of a driver, or another release, takes its place."""
        return any(step.actions is not None for step in self.steps)

    @property
    def edited(self) -> frozenset[str]:
        """Settings that name files which it edits, as ``NAME``, or as ``DRIVER.NAME`` where a step names a driver."""
        return frozenset(f"{step.driver}.{name}" if step.driver else name for step in self.steps for name in step.edits)
