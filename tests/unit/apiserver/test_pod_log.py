"""``pods/log``: what is asked for, and how it is answered; recorded of the API server of Kubernetes 1.37."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import aiohttp
import pytest

from dra_kit.apiserver.pod_log import PodLogOptions, PodLogUnavailable
from dra_kit.apiserver.server import ApiServer
from dra_kit.client.api import Client
from dra_kit.client.resources import NODES, PODS
from tests.unit.apiserver.conftest import Http, pod

PATH = "/api/v1/namespaces/default/pods"
NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "here"}}


async def echo(found: dict[str, Any], options: PodLogOptions) -> AsyncGenerator[bytes, None]:
    """The pod, the container, and the options that were given."""
    given = [options.follow and "f", options.previous and "p", options.timestamps and "t", options.since(10**12),
             options.tail_lines, options.limit_bytes]  # fmt: skip
    yield f"{found['metadata']['name']}/{options.container}".encode()
    yield "".join(f" {item}" for item in given if item).encode() + b"\n"


@pytest.fixture
async def placed(server: ApiServer, client: Client) -> None:
    """Two pods: one with a container on a node, one with three that has no node."""
    server.serve_logs(echo)
    await client.create(NODES, NODE)
    await client.create(PODS, pod("one", spec={"nodeName": "here"}))
    several = {"initContainers": [{"name": "i", "image": "x"}], "containers": [{"name": n, "image": "x"} for n in "ab"]}
    await client.create(PODS, pod("two", spec=several))


@pytest.mark.usefixtures("placed")
@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", "one/main\n"),
        ("container=main", "one/main\n"),
        ("follow=true&previous=x&timestamps=", "one/main f p t\n"),
        ("follow=0&previous=False", "one/main\n"),
        ("tailLines=%2B3&limitBytes=5", "one/main 3 5\n"),
        ("tailLines=3&tailLines=-5", "one/main 3\n"),
        ("sinceSeconds=9", "one/main 991000000000\n"),
        ("sinceTime=1970-01-01T01:00:07.9%2B01:00", "one/main 7000000000\n"),
        ("sinceTime=1970-01-01T0:00:07,5Z", "one/main 7000000000\n"),
        ("sinceTime=", "one/main\n"),
        ("insecureSkipTLSVerifyBackend=true&other=1", "one/main\n"),
    ],
)
async def test_log_options_are_parsed(http: Http, query: str, expected: str) -> None:
    assert (await http("GET", f"{PATH}/one/log?{query}"))[:2] == (200, expected)


INVALID = 'PodLogOptions "one" is invalid: '
NO_TIME = 'parsing time "{}" as "2006-01-02T15:04:05Z07:00": cannot parse "{}" as "{}"'


@pytest.mark.usefixtures("placed")
@pytest.mark.parametrize(
    ("path", "code", "message"),
    [
        ("one/log?tailLines=x", 400, 'strconv.ParseInt: parsing "x": invalid syntax'),
        ("one/log?tailLines=", 400, 'strconv.ParseInt: parsing "": invalid syntax'),
        ("one/log?tailLines=1_0", 400, 'strconv.ParseInt: parsing "1_0": invalid syntax'),
        ("one/log?limitBytes=9223372036854775808", 400,
         'strconv.ParseInt: parsing "9223372036854775808": value out of range'),
        ("one/log?tailLines=y&sinceSeconds=x&sinceTime=u", 400, 'strconv.ParseInt: parsing "x": invalid syntax'),
        ("one/log?sinceTime=u&tailLines=x", 400, NO_TIME.format("u", "u", "2006")),
        ("one/log?sinceTime=2026-01-01", 400, NO_TIME.format("2026-01-01", "", "T")),
        ("one/log?sinceTime=2026-01-01T00:00:00", 400, NO_TIME.format("2026-01-01T00:00:00", "", "Z07:00")),
        ("one/log?sinceTime=2026-01-01T00:00:00.Z", 400, NO_TIME.format("2026-01-01T00:00:00.Z", ".Z", "Z07:00")),
        ("one/log?sinceTime=2026-01-01t00:00:00z", 400, NO_TIME.format("2026-01-01t00:00:00z", "t00:00:00z", "T")),
        ("one/log?sinceTime=2026-01-01T00:00:00Zx", 400, 'parsing time "2026-01-01T00:00:00Zx": extra text: "x"'),
        ("one/log?sinceTime=2026-13-01T00:00:00Z", 400, 'parsing time "2026-13-01T00:00:00Z": month out of range'),
        ("one/log?sinceTime=2026-02-30T00:00:00Z", 400, 'parsing time "2026-02-30T00:00:00Z": day out of range'),
        ("one/log?sinceTime=2026-01-01T00:00:00%2B25:00", 400,
         'parsing time "2026-01-01T00:00:00+25:00": time zone offset hour out of range'),
        ("one/log?container=zz", 400, "container zz is not valid for pod one"),
        ("two/log", 400, "a container name must be specified for pod two, choose one of: [i a b]"),
        ("nope/log", 404, 'pods "nope" not found'),
        # options are looked at before the pod is
        ("nope/log?limitBytes=0", 422,
         'PodLogOptions "nope" is invalid: limitBytes: Invalid value: 0: must be greater than 0'),
        ("one/log?limitBytes=0&tailLines=-3&stream=All", 422,
         (f"{INVALID}[tailLines: Invalid value: -3: must be greater than or equal to 0, "
          "limitBytes: Invalid value: 0: must be greater than 0, stream: Forbidden: may not be specified]")),
        ("one/log?sinceSeconds=0", 422, f"{INVALID}sinceSeconds: Invalid value: 0: must be greater than 0"),
        ("one/log?sinceSeconds=-5&sinceTime=", 422,
         f"{INVALID}[]: Forbidden: at most one of `sinceTime` or `sinceSeconds` may be specified"),
    ],
)  # fmt: skip
async def test_invalid_log_options_are_rejected(http: Http, path: str, code: int, message: str) -> None:
    status, answer, _ = await http("GET", f"{PATH}/{path}")

    assert (status, answer["message"]) == (code, message)
    assert ("causes" in answer.get("details", {})) == (code == 422)


@pytest.mark.usefixtures("placed")
@pytest.mark.parametrize("method", ["HEAD", "POST", "DELETE"])
async def test_a_log_is_only_read(http: Http, method: str) -> None:
    assert (await http(method, f"{PATH}/one/log"))[0] == 405


@pytest.mark.usefixtures("placed")
async def test_a_pod_without_a_node_has_no_log_yet(http: Http) -> None:
    assert (await http("GET", f"{PATH}/two/log?container=i"))[:2] == (204, "")


@pytest.mark.usefixtures("placed")
async def test_pod_of_a_deleted_node_has_no_log(client: Client, http: Http) -> None:
    await client.create(PODS, pod("lost", spec={"nodeName": "nowhere"}))

    status, answer, _ = await http("GET", f"{PATH}/lost/log")

    assert (status, answer["message"]) == (404, 'pods "nowhere" not found')


@pytest.mark.usefixtures("placed")
async def test_request_that_the_kubelet_rejects_is_a_bad_request(server: ApiServer, http: Http) -> None:
    message = 'container "main" in pod "one" is waiting to start: ContainerCreating'

    def refuse(*_: object) -> AsyncGenerator[bytes, None]:
        raise PodLogUnavailable(message)

    server.serve_logs(refuse)
    status, answer, _ = await http("GET", f"{PATH}/one/log")

    assert (status, answer["reason"], answer["message"]) == (400, "BadRequest", message)


@pytest.mark.usefixtures("placed")
async def test_log_is_streamed_until_the_client_disconnects(server: ApiServer) -> None:
    ended = asyncio.Event()

    async def endless(*_: object) -> AsyncGenerator[bytes, None]:
        try:
            yield b"\xff\x1b[31m one\n"
            await asyncio.Event().wait()
        finally:
            ended.set()

    server.serve_logs(endless)
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{server.url}{PATH}/one/log?follow=true") as answer,
    ):
        assert (answer.content_type, answer.headers["Transfer-Encoding"]) == ("text/plain", "chunked")
        assert await answer.content.readline() == b"\xff\x1b[31m one\n"
        assert not ended.is_set()

    async with asyncio.timeout(60):
        await ended.wait()
