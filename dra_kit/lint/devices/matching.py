"""Selectors evaluated: for the devices that are known, and for one of a driver that nobody knows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from msgspec import Struct

from dra_kit.diagnosis.selector_mistakes.device_rules import Advertised, KnownDevice
from dra_kit.diagnosis.selector_mistakes.expression import (
    Expression,
    Mistake,
    Read,
    ask_first,
    begin_with_driver,
    blamed,
    guarded,
    plain_reads,
    reads,
)
from dra_kit.errors import CelRuntimeError
from dra_kit.kubernetes.cel.device import Device
from dra_kit.kubernetes.cel.explanation import explain
from dra_kit.kubernetes.cel.program import Selector
from dra_kit.kubernetes.cel.tree import LiteralNode, walk
from dra_kit.text import did_you_mean

FOREIGN: Final = Device(driver="another-driver.invalid")
"""A device of a driver that no selector is about."""

_EXPLAINED: Final = 500
"""Devices that are looked at condition by condition."""


class Chain(Struct, frozen=True):
    """The selectors that a device must pass, in the order in which they are evaluated.

    Attributes:
        programs: those of the class, then those of the request.
        expressions: the last ones of them, which findings are about.
    """

    programs: tuple[Selector, ...]
    expressions: tuple[Expression, ...]

    @property
    def before(self) -> tuple[Selector, ...]:
        """The selectors that come first, and are written elsewhere."""
        return self.programs[: len(self.programs) - len(self.expressions)]


def foreign_devices(chain: Chain, drivers: Collection[str]) -> Iterator[tuple[Expression, Mistake]]:
    """Yield why a selector fails for a device of another driver, which ends the allocation of every claim it is for.

    Args:
        chain: the selectors.
        drivers: that are known to have devices.
    """
    failed = _failure(chain, FOREIGN)
    if failed is None:
        return
    expression, error = failed
    read = next(plain_reads(expression), None)
    if error.kind != "no-such-key" or read is None or read.domain is None:
        return
    message = f"this fails for a device of another driver ({error.message}), and the whole allocation with it"
    fix = guarded(expression, read.domain) if read.domain in drivers else ()
    yield expression, Mistake("foreign-devices", *_span(read), message, begin_with_driver(expression, read), fix)


def evaluated(chain: Chain, advertised: Advertised, *, foreign_reported: bool) -> Iterator[tuple[Expression, Mistake]]:
    """Yield what becomes of the known devices.

    Args:
        chain: the selectors; all of them compile.
        advertised: the devices.
        foreign_reported: whether it is reported already that devices of other drivers make a selector fail.
    """
    matches, reached = 0, 0
    failures: dict[tuple[int, str, str], list[tuple[KnownDevice, int, CelRuntimeError]]] = {}
    for device, number in advertised.distinct:
        if not passes(chain.before, device.view):
            continue
        reached += number
        failed = _failure(Chain(chain.programs[len(chain.before) :], chain.expressions), device.view)
        if failed is None:
            matches += number if passes(chain.programs, device.view) else 0
            continue
        expression, error = failed
        read = blamed(expression, device.view)
        if read is not None and foreign_reported and read.domain != device.driver:
            continue
        key = (chain.expressions.index(expression), error.kind, _named(read) or error.message)
        failures.setdefault(key, []).append((device, number, error))
    for (index, _, _), found in failures.items():
        yield chain.expressions[index], _failed(chain.expressions[index], found, advertised)
    if not matches and not failures and reached and is_about(chain.programs, advertised):
        yield _unmatched(chain, advertised)


def _failed(
    expression: Expression, found: Sequence[tuple[KnownDevice, int, CelRuntimeError]], advertised: Advertised
) -> Mistake:
    device, _, error = found[0]
    count = sum(number for _, number, _ in found)
    which = f"{count} of {advertised.total} devices, such as {device.name}"
    read = blamed(expression, device.view)
    if read is None or error.kind != "no-such-key":
        message = f"this fails for {which}: {error.message}"
        return Mistake("cel-runtime", 0, len(expression.text), message, "a selector that fails ends the allocation")
    message = f"{read.name} is missing on {which}: the selector fails, and the whole allocation with it"
    return Mistake("optional-attribute", *_span(read), message, ask_first(expression, read))


def _unmatched(chain: Chain, advertised: Advertised) -> tuple[Expression, Mistake]:
    """Return which condition no device meets."""
    devices = [device for device, _ in advertised.distinct if passes(chain.before, device.view)][:_EXPLAINED]
    many = f"none of the {advertised.total} known devices"
    for expression in chain.expressions:
        program = expression.program
        if not isinstance(program, Selector):
            continue
        explained = [explain(program, device.view).conjuncts for device in devices]
        for number, conjunct in enumerate(explained[0] if explained else ()):
            if not any(conjuncts[number].result for conjuncts in explained):
                start = _index(expression.text, conjunct.line, conjunct.column)
                end = start + len(conjunct.text)
                return expression, Mistake(
                    "matches-nothing",
                    start,
                    end,
                    f"this is true for {many}",
                    _values(expression, start, end, advertised),
                )
    last = chain.expressions[-1]
    message = f"{many} meets all conditions, though each is met by some"
    return last, Mistake("matches-nothing", 0, len(last.text), message, "see dra-kit explain for the verdicts")


def _values(expression: Expression, start: int, end: int, advertised: Advertised) -> str:
    """Return what devices have instead of what a condition asks for."""
    texts = []
    nodes = (
        [node for node in walk(expression.root) if start <= node.start and node.end <= end] if expression.root else []
    )
    written = [node.value for node in nodes if isinstance(node, LiteralNode) and isinstance(node.value, str)]
    for read in reads(expression.root) if expression.root else ():
        if start <= read.node.start and read.node.end <= end and read.domain and read.name:
            trait = advertised.names(read.kind, read.domain).get(read.name)
            if trait is not None:
                near = [did_you_mean(text, trait.values) for text in written if text != read.domain]
                texts.append(f"{read.name} is {trait.shown()}{next(filter(None, near), '')}")
    return "; ".join(dict.fromkeys(texts))


def passes(programs: Sequence[Selector], device: Device) -> bool:
    """Return whether a device passes all selectors; one that fails for it keeps it out, too."""
    try:
        return all(program.matches(device) for program in programs)
    except CelRuntimeError:
        return False


def _failure(chain: Chain, device: Device) -> tuple[Expression, CelRuntimeError] | None:
    """Return the first expression of its own that fails for a device, unless one before is false."""
    if not passes(chain.before, device):
        return None
    for expression, program in zip(chain.expressions, chain.programs[len(chain.before) :], strict=True):
        try:
            if not program.matches(device):
                return None
        except CelRuntimeError as error:
            return expression, error
    return None


def _named(read: Read | None) -> str:
    return f"{read.kind}/{read.domain}/{read.name}" if read is not None else ""


def is_about(programs: Sequence[Selector], advertised: Advertised) -> bool:
    """Return whether devices that match must be among the known ones."""
    if advertised.complete:
        return True
    for program in programs:
        for node in walk(program.root):
            if isinstance(node, LiteralNode) and node.value in advertised.drivers:
                return True
    return False


def _span(read: Read) -> tuple[int, int]:
    return read.node.start, read.node.end


def _index(text: str, line: int, column: int) -> int:
    return sum(len(part) + 1 for part in text.split("\n")[: line - 1]) + column - 1
