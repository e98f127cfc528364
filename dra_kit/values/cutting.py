"""Texts of bounded length: what strangers write ends up in errors, and those in answers, Events and terminals."""

from __future__ import annotations


def cut(text: str, most: int) -> str:
    """Return the text, without its middle where it is too long: the object is at its beginning, the remedy at its end.

    Args:
        text: any; half a surrogate pair, which UTF-8 cannot hold, counts three bytes.
        most: bytes of UTF-8 that the result has at most; 64 or more.
    """
    encoded = text.encode(errors="surrogatepass")
    if len(encoded) <= most:
        return text
    gap = f" … {len(encoded)} bytes in all … "
    room = most - len(gap.encode())
    tail = room // 3
    # a character that is cut in two is left out
    return encoded[: room - tail].decode(errors="ignore") + gap + encoded[-tail:].decode(errors="ignore")
