"""Opaque parameters are stored and compared byte by byte. The verdicts were measured on kube-apiserver 1.37.1."""

from __future__ import annotations

import json

import aiohttp
import pytest

from dra_kit.apiserver.server import ApiServer
from dra_kit.client.api import Client
from dra_kit.client.resources import RESOURCE_CLAIMS
from dra_kit.kubernetes.resource.schema.protobuf import decode_message, unpack

PATH = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
PROTOBUF = "application/vnd.kubernetes.protobuf"


def claim(parameters: str, *, label: str = "") -> bytes:
    """A claim with these parameters, as text."""
    labels = f',"labels":{{"a":"{label}"}}' if label else ""
    kind = '"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaim"'
    requests = '"requests":[{"name":"r","exactly":{"deviceClassName":"x"}}]'
    opaque = f'{{"driver":"o.example.com","parameters":{parameters}}}'
    devices = f'{{{requests},"config":[{{"opaque":{opaque}}}]}}'
    return f'{{{kind},"metadata":{{"name":"one"{labels}}},"spec":{{"devices":{devices}}}}}'.encode()


class Claim:
    """A claim on the server."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self._url = session, url

    async def send(self, method: str, body: bytes, content_type: str = "application/json", *, query: str = "") -> int:
        path = PATH if method == "POST" else f"{PATH}/one"
        headers = {"Content-Type": content_type}
        async with self._session.request(method, f"{self._url}{path}{query}", data=body, headers=headers) as answer:
            await answer.read()
            return answer.status

    async def shown(self, accept: str = "application/json") -> bytes:
        async with self._session.get(f"{self._url}{PATH}/one", headers={"Accept": accept}) as answer:
            return await answer.read()

    async def patch(self, kind: str) -> int:
        return await self.send("PATCH", b'{"metadata":{"labels":{"a":"b"}}}', f"application/{kind}-patch+json")

    async def apply(self, body: bytes) -> int:
        return await self.send("PATCH", body, "application/apply-patch+yaml", query="?fieldManager=tests&force=true")


ESCAPED = r'{"note":"a \u0026 b"}'


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        ('{"note":"a & b"}', ESCAPED),
        (ESCAPED, ESCAPED),
        (r'{ "note" : "a \u0026 b" }', ESCAPED),
        ('{"b":1,"a":2}', '{"b":1,"a":2}'),
        (r'{"n":1.0,"m":"\u00e9 é \/ <"}', r'{"n":1.0,"m":"\u00e9 é \/ \u003c"}'),
        ('{"a":1,"a":2}', '{"a":1,"a":2}'),
    ],
)
async def test_parameters_are_shown_compact_and_escaped(server: ApiServer, sent: str, shown: str) -> None:
    async with aiohttp.ClientSession() as session:
        stored = Claim(session, server.url)
        assert await stored.send("POST", claim(sent)) == 201

        assert f'"parameters":{shown}}}'.encode() in await stored.shown()


@pytest.mark.parametrize("path", [PATH, f"{PATH}/one"])
async def test_deletion_shows_the_parameters_that_were_stored(server: ApiServer, path: str) -> None:
    async with aiohttp.ClientSession() as session:
        await Claim(session, server.url).send("POST", claim('{ "n":1.0, "n":2 }'))
        async with session.delete(server.url + path) as answer:
            body = await answer.read()

    assert b'"parameters":{"n":1.0,"n":2}}' in body


@pytest.mark.parametrize(
    ("stored", "sent", "code"),
    [
        ('{"note":"a & b"}', '{"note":"a & b"}', 200),
        (r'{ "note" : "a \u0026 b" }', r'{ "note" : "a \u0026 b" }', 200),
        ('{"note":"a & b"}', ESCAPED, 422),
        (ESCAPED, '{"note":"a & b"}', 422),
        ('{"note":"é"}', r'{"note":"\u00e9"}', 422),
        (r'{"note":"\u00e9"}', r'{"note":"\u00E9"}', 422),
        ('{"b":1,"a":2}', '{"a":2,"b":1}', 422),
        ('{"n":1.0}', '{"n":1}', 422),
        ('{"n":1}', '{"n": 1}', 422),
    ],
)
async def test_update_compares_the_bytes(server: ApiServer, stored: str, sent: str, code: int) -> None:
    async with aiohttp.ClientSession() as session:
        present = Claim(session, server.url)
        await present.send("POST", claim(stored))

        assert await present.send("PUT", claim(sent, label="b")) == code


@pytest.mark.parametrize(
    ("stored", "merge", "strategic"),
    [
        (ESCAPED, 200, 200),
        ('{"note":"é"}', 200, 200),
        ('{"note":"a & b"}', 422, 422),
        (r'{ "note" : "a" }', 422, 422),
        (r'{"note":"\u00e9"}', 200, 422),
        ('{"b":1,"a":2}', 200, 422),
        ('{"n":1.0}', 200, 422),
        ('{"n":1.5}', 200, 200),
    ],
)
async def test_patch_changes_a_text_that_go_would_not_write(
    server: ApiServer, stored: str, merge: int, strategic: int
) -> None:
    async with aiohttp.ClientSession() as session:
        present = Claim(session, server.url)
        await present.send("POST", claim(stored))

        config = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "one"}}
        assert await present.patch("merge") == merge
        assert await present.patch("strategic-merge") == strategic
        assert await present.apply(json.dumps(config).encode()) == strategic
        assert await present.apply(claim(stored)) == strategic


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        (r'{ "b" : "a & \u00e9", "a" : [ 1, {"z":1,"y":null} ] }', r'{"a":[1,{"y":null,"z":1}],"b":"a \u0026 é"}'),
        ('{"n":[1.0,1e3,1e21,0.0000001,-0,1e20,3.0e-5]}', '{"n":[1,1000,1e+21,1e-7,0,100000000000000000000,0.00003]}'),
    ],
)
@pytest.mark.parametrize("content_type", ["application/yaml", "application/apply-patch+yaml"])
async def test_yaml_becomes_the_json_of_go(server: ApiServer, content_type: str, sent: str, shown: str) -> None:
    async with aiohttp.ClientSession() as session:
        made = Claim(session, server.url)
        is_apply = "apply" in content_type
        code = await (made.apply(claim(sent)) if is_apply else made.send("POST", claim(sent), content_type))

        assert code == 201
        assert f'"parameters":{shown}}}'.encode() in await made.shown()


async def test_protobuf_has_the_original_bytes(server: ApiServer) -> None:
    text = r'{ "note" : "a & \u00e9" }'
    async with aiohttp.ClientSession() as session:
        made = Claim(session, server.url)
        await made.send("POST", claim(text))

        _, _, message = unpack(await made.shown(PROTOBUF))
        decoded = decode_message(message, "resource/v1.ResourceClaim")
        assert decoded["spec"]["devices"]["config"][0]["opaque"]["parameters"].text == text


async def test_client_writes_back_the_text_that_it_read(server: ApiServer, client: Client) -> None:
    async with aiohttp.ClientSession() as session:
        await Claim(session, server.url).send("POST", claim(r'{"note":"é \u0026 1"}'))

    read = await client.get(RESOURCE_CLAIMS, "one", "default")
    read["metadata"]["labels"] = {"a": "b"}

    assert (await client.update(RESOURCE_CLAIMS, read))["metadata"]["labels"] == {"a": "b"}
