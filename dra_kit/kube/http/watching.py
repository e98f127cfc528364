"""From the bytes of a watch to its events."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from typing import Any, Literal

from msgspec import Struct

from dra_kit.errors import KubeError, Unavailable
from dra_kit.kube.http.call import Call
from dra_kit.kube.http.status import decode, error_from_status


class WatchEvent(Struct, frozen=True):
    """One change.

    Attributes:
        type: what happened; a BOOKMARK only tells a newer resource version.
        object: the object after the change; as it was last for DELETED.
    """

    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
    object: dict[str, Any]


async def lines(call: Call, chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Yield the lines of a stream of chunks, of any length, without empty ones.

    Raises:
        Unavailable: the stream ends within a line.
    """
    begun: list[bytes] = []
    async for chunk in chunks:
        first, *others = chunk.split(b"\n")
        begun.append(first)
        for other in others:
            line = b"".join(begun)
            begun = [other]
            if line.strip():
                yield line
    if b"".join(begun).strip():
        raise Unavailable(f"{call}: the connection was closed in the middle of an event; watch again")


def event_from_line(call: Call, line: bytes) -> WatchEvent:
    """Return the event in one line.

    Raises:
        Gone: the ERROR event says that the resource version is too old.
        KubeError: any other ERROR event, or a line that is no event.
    """
    event = decode(call, line)
    content = event.get("object")
    if not isinstance(content, dict):
        raise KubeError(f"{call}: a watch event holds no object; is the server a Kubernetes API server?")
    match event.get("type"):
        case "ADDED" | "MODIFIED" | "DELETED" | "BOOKMARK" as kind:
            return WatchEvent(kind, content)
        case "ERROR":
            code = content.get("code")
            raise error_from_status(call, code if isinstance(code, int) else 500, content)
        case other:
            raise KubeError(f"{call}: unknown watch event {other!r}; is there a newer dra-kit for this server?")
