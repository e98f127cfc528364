"""JSON within limits, which are looked for before anything is made of the text."""

from __future__ import annotations

from itertools import accumulate
from typing import Any, Final

from dra_kit.manifests.limits import Limits
from dra_kit.manifests.parsing.scalars import NoValue, json_value
from dra_kit.manifests.unreadable import Unreadable
from dra_kit.values.json import decoded, decoder

_OTHERS: Final = bytes(set(range(256)) - set(b'[]{},"\\'))
_STEPS: Final = [0] * 256
for _bracket in b"[{":
    _STEPS[_bracket] = 1
for _bracket in b"]}":
    _STEPS[_bracket] = -1

_DIGITS: Final = 400


def check_json(content: bytes, limits: Limits) -> None:
    """Refuse JSON whose nesting or number of values is beyond the limits; what is no JSON may pass.

    Args:
        content: in UTF-8.
        limits: of the document.

    Raises:
        Unreadable: with the limit.
    """
    structure = _structure(content)
    # a list or object of n values has n - 1 commas and an opening bracket: there are no more values than this
    values = structure.count(b",") + structure.count(b"[") + structure.count(b"{")
    if values > limits.values:
        raise Unreadable(f"it has more than {limits.values} values; split it")
    depths = accumulate(map(_STEPS.__getitem__, structure.replace(b",", b"")))
    if structure.count(b"[") + structure.count(b"{") > limits.depth and max(depths) > limits.depth:
        raise Unreadable(f"it is nested more than {limits.depth} levels deep, and no object of Kubernetes is")


def _structure(content: bytes) -> bytes:
    """Return the brackets and commas that are in no string."""
    if b"\\" in content:  # which only strings have
        content = content.replace(b"\\\\", b"").replace(b'\\"', b"")
    content = content.translate(None, _OTHERS)
    if b'"' not in content:
        return content
    # of most strings nothing is left but the quotes
    return b"".join(content.replace(b'""', b"").split(b'"')[::2])


def json_document(text: str) -> Any:
    """Return the value of a JSON text as kubectl reads it, an object with repeated keys as a DuplicateKeysObject.

    Args:
        text: one document, which ``check_json`` has let pass.

    Raises:
        ValueError: it is no JSON.
        Unreadable: it has a number that nothing can hold.
    """
    return decoded(text, _decode)


def _integer(digits: str) -> Any:
    return int(digits) if len(digits) < 19 else _float(digits)


def _float(digits: str) -> Any:
    try:
        return json_value(int(digits) if len(digits) <= _DIGITS and digits.lstrip("-").isdigit() else float(digits))
    except NoValue:
        raise Unreadable("a number is larger than a float of 64 bits can be; write it in quotes") from None


_decode = decoder(parse_int=_integer, parse_float=_float)
