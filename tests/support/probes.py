"""A client of liveness and readiness probes that needs no event loop."""

from __future__ import annotations

import urllib.error
import urllib.request


def ask(port: int, path: str, host: str = "127.0.0.1") -> tuple[int, str]:
    """Status and body."""
    try:
        with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
