"""Selectors that fail for a device because they read what it does not have, and do not ask first."""

from __future__ import annotations

from collections.abc import Iterator

from dra_kit import cel
from dra_kit.resource.mistakes.expression import Expression
from dra_kit.resource.mistakes.mistake import Replacement, quoted
from dra_kit.resource.mistakes.reads import Read, reads


def blamed(expression: Expression, device: cel.Device) -> Read | None:
    """Return the first read of something that a device does not have; None if there is none that could fail.

    Args:
        expression: a selector.
        device: for which it fails.
    """
    for read in plain_reads(expression):
        held = device.attributes if read.kind == "attributes" else device.capacity
        if read.name not in held.get(read.domain or "", {}):
            return read
    return None


def plain_reads(expression: Expression) -> Iterator[Read]:
    """Yield the reads that fail for a device without the attribute or capacity."""
    for read in reads(expression.root) if expression.root else ():
        if read.name is not None and not read.tested and not read.last:
            yield read


def ask_first(expression: Expression, read: Read) -> str:
    """Return what to write so that a selector does not fail for a device of the driver that lacks something."""
    return f"ask first: has({read.node.text(expression.text)}) && …"


def begin_with_driver(expression: Expression, read: Read) -> str:
    """Return what to write so that a selector does not fail for devices of other drivers."""
    return f'begin with device.driver == "{read.domain}" &&{" ( … )" if "||" in expression.text else ""}'


def guarded(expression: Expression, driver: str) -> tuple[Replacement, ...]:
    """Return the edits that make a selector false for other drivers' devices and do not change it for one driver's."""
    text = expression.text
    guard = f"device.driver == {quoted(driver, text)} && "
    begin, end = len(text) - len(text.lstrip()), len(text.rstrip())
    if "||" in text or "?" in text:
        return Replacement(begin, begin, f"{guard}("), Replacement(end, end, ")")
    return (Replacement(begin, begin, guard),)
