"""Minimum durations on this machine, by which the rival's figures are scaled."""

from __future__ import annotations

import http.client
import json
import os
import ssl
import statistics
import time
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.world import timed
from dra_kit.client.credentials import Credentials
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.objects import ClaimReference


def fsync_ms(directory: Path, times: int = 200) -> float:
    """Return the median time to append and sync a 4 KiB block."""
    figures = []
    path = directory / "floor"
    with path.open("wb", buffering=0) as file:
        for _ in range(times):
            start = time.perf_counter()
            file.write(b"x" * 4096)
            os.fdatasync(file.fileno())
            figures.append(timed(start))
    path.unlink()
    return statistics.median(figures)


async def get_ms(credentials: Credentials, claim: ClaimReference, times: int = 200) -> float:
    """Return the median time of a GET of a claim over an open connection with a minimal client."""
    address = urlsplit(credentials.connection.server)
    context = credentials.ssl or ssl.create_default_context()
    connection = http.client.HTTPSConnection(address.hostname or "", address.port, context=context)
    authorization = await credentials.authorization()
    headers = {"Authorization": authorization} if authorization else {}
    path = f"/apis/resource.k8s.io/v1/namespaces/{claim.namespace}/resourceclaims/{claim.name}"
    figures = []
    for _ in range(times):
        start = time.perf_counter()
        connection.request("GET", path, headers=headers)
        connection.getresponse().read()
        figures.append(timed(start))
    connection.close()
    return statistics.median(figures)


def decode_us(text: bytes, pause: float, times: int = 200) -> float:
    """Median microseconds to read one claim from JSON, each time after a pause of so many seconds.

    The additional time after a pause is not spent in the code: other processes have used the CPU and its caches.
    """
    figures = []
    for _ in range(times):
        time.sleep(pause)
        start = time.perf_counter()
        v1.ResourceClaim.model_validate(json.loads(text))
        figures.append(timed(start) * 1000)
    return statistics.median(figures)
