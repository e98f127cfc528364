"""``/healthz``, ``/livez`` and ``/readyz``, whole and check by check.

Source: k8s.io/apiserver 0.37 ``pkg/server/healthz``. The start-up hooks of a real API server are no checks here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from aiohttp import web

from dra_kit.apiserver.requests.requests import Query

_CHECKS: Final[Mapping[str, tuple[str, ...]]] = {
    "healthz": ("ping", "log", "etcd"),
    "livez": ("ping", "log", "etcd"),
    "readyz": ("ping", "log", "etcd", "informer-sync", "shutdown"),
}
"""What each path asks about; the server answers, so that all is well."""

PATHS: Final = tuple(f"/{name}" for name in _CHECKS)


def serve(raw: web.BaseRequest) -> web.Response | None:
    """Return the answer to a request with any method; None for another path."""
    _, name, *check = raw.rel_url.raw_path.split("/", 2)
    if name not in _CHECKS:
        return None
    if check and check[0] not in _CHECKS[name]:
        return web.Response(text="404 page not found\n", status=404)
    query = Query.parse(raw.rel_url.raw_query_string)
    if check or "verbose" not in query.values:
        return web.Response(text="ok")
    return web.Response(text=_verbose(name, query.values.get("exclude", ())))


def _verbose(name: str, excluded: Sequence[str]) -> str:
    """Return one line for each check, and the verdict."""
    lines = [f"[+]{check}{' excluded:' if check in excluded else ''} ok\n" for check in _CHECKS[name]]
    unknown = [f'"{check}"' for check in sorted(set(excluded) - set(_CHECKS[name]))]
    if unknown:
        lines.append(f"warn: some health checks cannot be excluded: no matches for {', '.join(unknown)}\n")
    return "".join((*lines, f"{name} check passed\n"))
