"""GET requests to an API server behind ``kubectl proxy``."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from http import HTTPStatus
from typing import Any


def fetch(server: str, path: str) -> Any:
    """Return the JSON at a path.

    Raises:
        FileNotFoundError: the server has nothing there.
        OSError: the server does not answer, or answers with another error.
    """
    try:
        with urllib.request.urlopen(f"{server}{path}", timeout=60) as answer:  # noqa: S310 - an address of the caller
            return json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code != HTTPStatus.NOT_FOUND:
            raise
        raise FileNotFoundError(f"{server}{path} is not served") from error
