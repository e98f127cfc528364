"""What is expected where nobody has written it: every pod that was applied, or that a workload made, does its work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dra_kit.sandbox.stories.expectations.outcome import Outcome
from dra_kit.sandbox.stories.stage import Made


class Completion(Protocol):
    """The expectation of a step that has no other."""

    async def look(self, made: Sequence[Made]) -> Outcome:
        """Return how the pods stand; asked again and again until it is settled."""
        ...

    async def judge(self, made: Sequence[Made]) -> Outcome:
        """Return how the pods stand, with the causes behind what is not as it should be; asked once, in the end."""
        ...
