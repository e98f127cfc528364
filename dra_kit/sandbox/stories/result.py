"""How a story went, and why it failed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct, field

from dra_kit.sandbox.stories.expectations.outcome import Outcome
from dra_kit.sandbox.stories.expectations.verdict import Mismatch

if TYPE_CHECKING:
    from dra_kit.sandbox.stories.expectations.facts import PodFacts


class Failure(Struct, frozen=True):
    """Why a story failed: where, what was not as expected, and what the cluster says of the objects.

    ``outcome`` is that of a step whose expectation nobody has written.
    """

    where: str
    mismatches: tuple[Mismatch, ...]
    messages: tuple[str, ...] = ()
    outcome: Outcome | None = None

    @property
    def lines(self) -> list[str]:
        """The failure as a person reads it: the first line says where."""
        lines = [f"{self.where}:", *(f"  {mismatch}" for mismatch in self.mismatches)]
        if self.outcome:
            lines += [f"  {line}" for text in self.outcome.failures for line in text.splitlines()]
        if self.messages:
            lines += ["  events and conditions:", *(f"    {message}" for message in self.messages)]
        return lines

    def __str__(self) -> str:
        return "\n".join(self.lines)


class StoryResult(Struct, frozen=True):
    """How a story went.

    Attributes:
        story: its name.
        namespace: it ran in.
        seconds: it took, with the clean-up.
        pods: what was seen of each pod last.
        failures: none when all of it was true.
        unseen: files of the nodes that it speaks of, and that cannot be looked at from here.
    """

    story: str
    namespace: str
    seconds: float
    pods: Mapping[str, PodFacts] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()
    unseen: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Everything the story expects was true, and nothing was left over."""
        return not self.failures

    @property
    def lines(self) -> list[str]:
        """The report as a person reads it: one line when it passed, else expected and got of each failure, too."""
        head = f"story {self.story} {'passed' if self.passed else 'FAILED'} in {self.seconds:.1f} s"
        if self.unseen:
            head += f"; not looked at, for nodes of a real cluster are not seen: file {', '.join(self.unseen)}"
        return [head, *(line for failure in self.failures for line in failure.lines)]

    def report(self) -> str:
        """Return the lines as one text."""
        return "\n".join(self.lines)
