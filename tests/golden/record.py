"""Records the answers of a real API server: ``python -m tests.golden.record --dir DIR FILE > RECORDED``.

FILE holds request sequences in the golden format; existing answers are recorded again. DIR is the state folder
of a control plane that the ``cluster`` tool has started, with scheduler and controller manager stopped before anything
else. Every line is sent twice: a line with different answers is reported and omitted.

For another release, ``--differing default`` or ``--differing alpha`` (the gates of the control plane) records only the
lines of FILE that it answers otherwise. In their steps ``was`` holds what FILE has in place of what differs (null =
absent), and ``differs`` of the line names the keys. With the gates ``alpha``, lines of default gates are sent too:
features may have been off by default.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import ssl
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import aiohttp
import yaml

from tests.golden.api import Comparison
from tests.golden.api_client import NAMESPACES, REQUEST, Steps, expand
from tests.golden.files import read
from tests.golden.kind import Line

_SENT: Final = (*REQUEST, "sleep", "settle", "sortRules", "warningsUnordered")
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_OBJECT: Final = re.compile(r'(Invalid value: ")\{.*\}(": )', re.DOTALL)
_VERSION: Final = re.compile(r"(ResourceVersion in object meta: )\d+")
_DEPRECATED: Final = re.compile(r" is deprecated in v1\.\d+\+")
_AGE: Final = re.compile(r"(\d+[smhdy])+")


class _Marks:
    """Replaces values that differ in each run by placeholders."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, str]] = {"uid": {}, "rv": {}, "name": {}}
        self._since = datetime.now(UTC) - timedelta(minutes=5)

    def _mark(self, what: str, value: str) -> str:
        known = self._known[what]
        return known.setdefault(value, f"<{what}:{len(known)}>")

    def answer(self, step: Line, got: Line) -> Line:
        """Return a step with its answer."""
        is_list = isinstance(got.get("stored"), dict) and "items" in got["stored"]
        collection = is_list or (step.get("method") == "GET" and not isinstance(self._name_in(step), str))
        marked = {
            key: got[key] if key in _SENT else self._value(got[key], step, key, collection=collection) for key in got
        }
        marked |= {key: step[key] for key in ("body", "rawBody", "path", "query") if key in step}
        if "during" in step:
            marked["during"] = [self.answer(*pair) for pair in zip(step["during"], got["during"], strict=True)]
        return marked

    @staticmethod
    def _name_in(step: Line) -> str | None:
        """Return the name of the object of a path."""
        parts = step["path"].strip("/").split("/")
        parts = parts[2:] if parts[0] == "api" else parts[3:]
        parts = parts[2:] if len(parts) > 2 and parts[0] == "namespaces" else parts
        return parts[1] if len(parts) > 1 else None

    def _value(self, value: Any, step: Line, key: str = "", *, collection: bool = False) -> Any:
        if isinstance(value, dict):
            return self._object(value, step, collection=collection)
        if isinstance(value, list):
            return [self._value(item, step, key) for item in value]
        if not isinstance(value, str):
            return value
        if key == "message":
            value = _OBJECT.sub(r"\1<object>\2", _VERSION.sub(r"\1<rv>", value))
        if key == "cells" and _AGE.fullmatch(value):
            return "<age>"
        for known in self._known["uid"], self._known["name"]:
            for text, mark in known.items():
                value = value.replace(text, mark)
        return _TIME.sub(self._time, value)

    def _object(self, value: Line, step: Line, *, collection: bool) -> Line:
        marked: Line = {}
        for key, item in value.items():
            if key == "metadata" and isinstance(item, dict):
                marked[key] = self._metadata(item, step, collection=collection)
            else:
                marked[key] = self._value(item, step, key)
        return marked

    def _metadata(self, metadata: Line, step: Line, *, collection: bool) -> Line:
        marked = dict(metadata)
        if uid := metadata.get("uid"):
            marked["uid"] = self._mark("uid", uid)
        if metadata.get("generateName") and metadata.get("name"):
            self._mark("name", metadata["name"])
        if version := metadata.get("resourceVersion"):
            marked["resourceVersion"] = "<listrv>" if collection else self._mark("rv", version)
        if "managedFields" in metadata and not step.get("managedFields"):
            marked["managedFields"] = "<managedFields>"
        return {key: self._value(item, step, key) for key, item in marked.items()}

    def _time(self, found: re.Match[str]) -> str:
        return "<now>" if datetime.fromisoformat(found[0]) > self._since else found[0]


class _Recorder:
    """A running control plane.

    Args:
        directory: state folder of the ``cluster`` tool.
    """

    def __init__(self, directory: Path) -> None:
        config = yaml.safe_load((directory / "admin.kubeconfig").read_text(encoding="utf-8"))
        self.url = config["clusters"][0]["cluster"]["server"]
        pki = directory / "pki"
        self._ssl = ssl.create_default_context(cafile=pki / "ca.crt")
        self._ssl.verify_flags &= ~ssl.VERIFY_X509_STRICT
        self._ssl.load_cert_chain(pki / "admin.crt", pki / "admin.key")

    async def record(self, lines: list[Line], *, differing: bool = False) -> list[Line]:
        """Return the lines with equal answers in two runs, with these answers.

        Args:
            lines: to send.
            differing: whether to leave out the lines whose recorded answers it gives.
        """
        connector = aiohttp.TCPConnector(ssl=self._ssl, force_close=True)
        # the server closes a connection whose body it does not read
        async with aiohttp.ClientSession(connector=connector, headers={"User-Agent": "oracle/1"}) as client:
            for name, labels in NAMESPACES.items():
                body = {"metadata": {"name": name, "labels": labels}}
                async with client.post(f"{self.url}/api/v1/namespaces", json=body) as answer:
                    assert answer.status in {201, 409}
            recorded = []
            for line in lines:
                if any("compact" in step for step in line["steps"]):
                    print(f"left out, a server does not forget on request: {line['id']}", file=sys.stderr)
                    continue
                try:
                    first = await self._answers(client, line)
                    if differing and _agree(line, first):
                        continue
                    second = await self._answers(client, line)
                except aiohttp.ClientError as error:  # a request that crashes the server
                    print(f"left out, not answered: {line['id']}: {error}", file=sys.stderr)
                    continue
                if first == second:
                    recorded.append(_differing(line, first) if differing else {**line, "steps": first})
                else:
                    print(f"left out, answered in two ways: {line['id']}\n  {first}\n  {second}", file=sys.stderr)
            return recorded

    async def _answers(self, client: aiohttp.ClientSession, line: Line) -> list[Line]:
        steps, marks = Steps(self.url, client, patient=True), _Marks()
        answered = []
        try:
            for step in expand(line)["steps"]:
                asked = {key: step[key] for key in (*_SENT, "events", "during") if key in step}
                answered.append((step, await steps.take(asked)))
        finally:
            for step, got in reversed(answered):
                await self._remove(client, step, got)
        originals = line["steps"]
        return [marks.answer(step, got) for step, (_, got) in zip(originals, answered, strict=True)]

    async def _remove(self, client: aiohttp.ClientSession, step: Line, got: Line) -> None:
        """Remove the object that a step created or changed, also with finalizers."""
        for pair in zip(step.get("during", ()), got.get("during", ()), strict=True):
            await self._remove(client, *pair)
        if step.get("method") not in {"POST", "PUT", "PATCH"} or got["status"] not in {200, 201, 406}:
            return
        told, sent = ((value if isinstance(value, dict) else {}).get("metadata") or {}
                      for value in (got.get("stored"), step.get("body")))  # fmt: skip
        name = told.get("name") or sent.get("name") or ""
        if not name or f"{step['path']}/{name}" == "/api/v1/namespaces/default/serviceaccounts/default":
            return
        path = f"{step['path']}/{name}" if step["method"] == "POST" else step["path"].removesuffix("/status")
        headers = {"Content-Type": "application/merge-patch+json"}
        async with client.patch(self.url + path, json={"metadata": {"finalizers": None}}, headers=headers):
            pass
        async with client.delete(self.url + path, json={"gracePeriodSeconds": 0}):
            pass
        if re.fullmatch(r"/api/v1/namespaces/[^/]+", path):
            async with client.put(f"{self.url}{path}/finalize", json={"metadata": {"name": name}}):
                pass


def _agree(line: Line, answers: list[Line]) -> bool:
    """Return whether recorded answers differ at most in the messages of Go's libraries, and in what is deprecated."""
    comparison = Comparison([])
    pairs = zip(map(_undated, line["steps"]), map(_undated, answers), strict=True)
    return all(comparison.answer(step, answer) == step for step, answer in pairs)


def _undated(step: Line) -> Line:
    """Return a step without warnings of deprecated versions, which each release gives for other ones."""
    kept = [text for text in step.get("warnings", ()) if not _DEPRECATED.search(text)]
    return {key: value for key, value in step.items() if key != "warnings"} | ({"warnings": kept} if kept else {})


def _differing(line: Line, answers: list[Line]) -> Line:
    """Return a line with other answers, and with the former ones where they differ."""
    steps, names = [], set()
    for before, now in zip(line["steps"], answers, strict=True):
        keys = [key for key in (*before, *now) if key not in _SENT and before.get(key) != now.get(key)]
        names.update(keys)
        steps.append(now | ({"was": {key: before.get(key) for key in keys}} if keys else {}))
    return {**line, "differs": sorted(names), "steps": steps}


def _of_gates(lines: list[Line], gates: str) -> list[Line]:
    """Return the lines to send to a server with the gates ``default`` or ``alpha``."""
    if gates == "default":
        return [line for line in lines if line["gates"] == "default"]
    ids = {line["id"] for line in lines}
    sent = [line for line in lines if line["gates"] == "alpha" or f"{line['id']}+alpha" not in ids]
    return [
        line if line["gates"] == "alpha" else line | {"id": f"{line['id']}+alpha", "gates": "alpha"}
        for line in sent
    ]  # fmt: skip


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden.record", description=__doc__)
    parser.add_argument("--dir", type=Path, required=True, help="state folder of the cluster tool")
    parser.add_argument("--differing", choices=("default", "alpha"), help="only lines answered otherwise; the gates")
    parser.add_argument("file", type=Path, metavar="FILE")
    options = parser.parse_args()
    lines = _of_gates(read(options.file), options.differing) if options.differing else read(options.file)
    for line in asyncio.run(_Recorder(options.dir).record(lines, differing=bool(options.differing))):
        print(json.dumps(line, separators=(",", ":"), ensure_ascii=False))


if __name__ == "__main__":
    main()
