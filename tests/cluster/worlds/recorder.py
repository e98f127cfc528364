"""Records what a real API server answers to the requests of golden lines: ``python -m tests.cluster.worlds.recorder``.

The server has neither scheduler nor controllers, as for the other recorded answers; answers that a line has already
are replaced.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import tempfile
from pathlib import Path
from typing import Any

import aiohttp

from dra_kit.client.credentials import load_credentials
from tests.cluster import envtest
from tests.golden.api_client import NAMESPACES
from tests.golden.files import read
from tests.golden.kind import Line

_SENT = ("method", "path", "query", "accept", "body", "contentType", "keepResources", "sortItems", "only")
_TIME = re.compile(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_AGE = re.compile(r"(\d+[smhdy])+")


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.worlds.recorder", description=__doc__)
    parser.add_argument("assets", type=Path, help="folder with etcd and kube-apiserver")
    parser.add_argument("file", type=Path, help="golden lines, rewritten")
    options = parser.parse_args()
    lines = read(options.file)
    with (
        tempfile.TemporaryDirectory(prefix="dra-kit-") as directory,
        envtest.control_plane(options.assets, Path(directory)) as kubeconfig,
    ):
        recorded = asyncio.run(_record(lines, kubeconfig))
    options.file.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in recorded))


async def _record(lines: list[Line], kubeconfig: Path) -> list[Line]:
    credentials = await load_credentials(kubeconfig)
    connector = aiohttp.TCPConnector(ssl=credentials.ssl or True)
    async with aiohttp.ClientSession(connector=connector, headers={"User-Agent": "oracle/1"}) as session:
        for name, labels in NAMESPACES.items():
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
            async with session.post(f"{credentials.connection.server}/api/v1/namespaces", json=body) as answer:
                answer.raise_for_status()
        return [line | {"steps": await _steps(session, credentials.connection.server, line)} for line in lines]


async def _steps(session: aiohttp.ClientSession, server: str, line: Line) -> list[Line]:
    marks = _Marks()
    steps, made = [], []
    for step in line["steps"]:
        sent = {key: step[key] for key in _SENT if key in step}
        status, parsed = await _send(session, server, sent)
        steps.append(sent | {"status": status, **_answer(sent, marks.put(parsed))})
        if sent["method"] == "POST" and status == 201:
            made.append(f"{sent['path']}/{parsed['metadata']['name']}")
    for path in reversed(made):
        await _send(session, server, {"method": "DELETE", "path": path, "body": {"gracePeriodSeconds": 0}})
    return steps


async def _send(session: aiohttp.ClientSession, server: str, step: Line) -> tuple[int, Any]:
    url = server + step["path"] + (f"?{step['query']}" if "query" in step else "")
    headers = {"Accept": step.get("accept", "application/json")}
    data = None
    if "body" in step:
        data = json.dumps(step["body"], separators=(",", ":"))
        headers["Content-Type"] = step.get("contentType", "application/json")
    async with session.request(step["method"], url, data=data, headers=headers) as answer:
        return answer.status, await answer.json()


def _answer(step: Line, value: Line) -> Line:
    if value.get("kind") == "Status" and value.get("status") == "Failure":
        details = dict(value.get("details") or {})
        causes = details.pop("causes", None)
        found: Line = {"reason": value.get("reason", ""), "message": value.get("message", "")}
        return found | ({"details": details} if details else {}) | ({"causes": causes} if causes else {})
    if "keepResources" in step:
        value["resources"] = [
            item for item in value["resources"] if item["name"].partition("/")[0] in step["keepResources"]
        ]
    return {"stored": value}


class _Marks:
    """Replaces what no two servers have in common; the same value gets the same mark throughout a line."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def put(self, value: Any, key: str = "") -> Any:
        """A value with marks.

        Args:
            value: JSON.
            key: of the field that has it.
        """
        if isinstance(value, dict):
            if value.get("kind") == "Table":
                value = value | {"metadata": value.get("metadata", {}) | {"resourceVersion": "<listrv>"}}
            return {name: self.put(item, name) for name, item in value.items()}
        if key == "managedFields":
            return "<managedFields>"
        if isinstance(value, list):
            return [self.put(item, key) for item in value]
        if not isinstance(value, str) or value.startswith("<"):
            return value
        if key in {"uid", "resourceVersion"}:
            return self._numbered(value, "rv" if key == "resourceVersion" else "uid")
        if _TIME.fullmatch(value):
            return "<now>"
        return "<age>" if key == "cells" and _AGE.fullmatch(value) else value

    def _numbered(self, value: str, mark: str) -> str:
        number = sum(known.startswith(f"<{mark}:") for known in self._known.values())
        return self._known.setdefault(value, f"<{mark}:{number}>")


if __name__ == "__main__":
    main()
