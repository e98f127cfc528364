"""``/metrics``: how many requests came, as a real API server tells it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aiohttp import web

_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores"
_HEAD: Final = (
    "# HELP apiserver_request_total [STABLE] Counter of apiserver requests broken out for each verb and resource.\n"
    "# TYPE apiserver_request_total counter\n"
)


def metrics(requests: Mapping[tuple[str, str, str], int]) -> web.Response:
    """Answer the request for metrics; requests are counted by (user agent, verb, resource with its subresource)."""
    counts: dict[tuple[str, str, str], int] = {}
    for (_, verb, resource), count in requests.items():
        plural, _, subresource = resource.partition("/")
        key = plural, subresource, verb.upper()
        counts[key] = counts.get(key, 0) + count
    name = "apiserver_request_total"
    lines = [
        f'{name}{{resource="{_escaped(plural)}",subresource="{_escaped(part)}",verb="{verb}"}} {count}\n'
        for (plural, part, verb), count in sorted(counts.items())
    ]
    return web.Response(body=(_HEAD + "".join(lines)).encode(), headers={"Content-Type": _TYPE})


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
