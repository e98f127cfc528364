"""What an author's ``prepare`` returned, where it is no ``Prepared``: reported with the place of the method."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

from dra_kit.author.models.model import kind_of
from dra_kit.author.preparing.prepared import Prepared
from dra_kit.errors import PermanentError


def check_prepared(prepare: Callable[..., object], device: str, returned: object) -> Prepared:
    """Return what ``prepare`` returned for one device.

    Args:
        prepare: the author's method.
        device: name of the device.
        returned: by the method.

    Raises:
        PermanentError: it is no ``Prepared`` (code ``invalid-prepared``).
    """
    if isinstance(returned, Prepared):
        return returned
    remedy = "write 'return dra_kit.Prepared(…)'"
    if returned is None:
        remedy += ", without anything in it for a container that needs nothing"
    raise _wrong(prepare, f"{kind_of(returned)} for device {device}", remedy)


def check_all_prepared(prepare_claim: Callable[..., object], devices: int, returned: object) -> Sequence[Prepared]:
    """Return what ``prepare_claim`` returned.

    Args:
        prepare_claim: the author's method.
        devices: how many it was asked for.
        returned: by the method.

    Raises:
        PermanentError: it is not one ``Prepared`` for each device (code ``invalid-prepared``).
    """
    if isinstance(returned, Sequence) and len(returned) == devices:
        prepared = [item for item in returned if isinstance(item, Prepared)]
        if len(prepared) == devices:
            return prepared
    asked = f"{devices} device{'' if devices == 1 else 's'}"
    raise _wrong(
        prepare_claim, f"{_described(returned)} for {asked}", "return a list with one dra_kit.Prepared for each"
    )


def _wrong(method: Callable[..., object], what: str, remedy: str) -> PermanentError:
    title = method.__qualname__.rpartition(">.")[2]
    code = getattr(inspect.unwrap(method), "__code__", None)  # a builtin or a mock has none
    place = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
    return PermanentError(f"{title}{place} returned {what}; {remedy}", code="invalid-prepared")


def _described(returned: object) -> str:
    """Return types and count of what an author's code returned: values may be secrets, and the text is an Event's."""
    if not isinstance(returned, Sequence) or isinstance(returned, str | bytes):
        return kind_of(returned)
    kinds = ", ".join(dict.fromkeys(kind_of(item) for item in returned))
    return f"{kind_of(returned)} of {len(returned)}" + (f" ({kinds})" if kinds else "")
