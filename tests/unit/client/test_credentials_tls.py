from __future__ import annotations

import asyncio
import json
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from dra_kit.client.api import Client
from dra_kit.client.credentials import load_credentials
from dra_kit.client.resources import NODES
from dra_kit.errors import ConfigurationError, Unavailable
from tests.unit.client.kubeconfigs import PRINT_STATUS, b64, kubeconfig, plugin
from tests.unit.client.wire import answer, served

# kubernetes-asyncio compares times with functions that Python 3.12 deprecates
pytestmark = pytest.mark.filterwarnings(r"ignore:datetime\.datetime\.utc:DeprecationWarning")


@pytest.mark.parametrize("inline", [True, False], ids=["data", "files"])
async def test_a_server_and_a_client_know_each_other_by_certificates(tmp_path: Path, inline: bool) -> None:
    authority = trustme.CA()
    names: list[str] = []
    server_context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_context.verify_mode = ssl.CERT_REQUIRED
    authority.issue_cert("127.0.0.1").configure_cert(server_context)
    authority.configure_trust(server_context)
    client_certificate = authority.issue_cert("oven.example", common_name="oven")
    material = {
        "certificate-authority": authority.cert_pem.bytes(),
        "client-certificate": client_certificate.cert_chain_pems[0].bytes(),
        "client-key": client_certificate.private_key_pem.bytes(),
    }
    given: dict[str, Any] = {}
    for name, pem in material.items():
        if inline:
            given[f"{name}-data"] = b64(pem)
        else:
            (tmp_path / f"{name}.pem").write_bytes(pem)
            given[name] = f"{name}.pem"
    user = {name: value for name, value in given.items() if name.startswith("client")}
    cluster = {name: value for name, value in given.items() if not name.startswith("client")}

    async def note_peer(request: Any) -> Any:
        subject = request.transport.get_extra_info("peercert")["subject"]
        names.extend(value for ((key, value),) in subject if key == "commonName")
        return await answer({"ok": 1})(request)

    async with served(note_peer, context=server_context) as wire:
        path = kubeconfig(tmp_path / "config", user, server=wire.url, **cluster)
        async with Client(await load_credentials(path), user_agent="dra-kit/test") as client:
            assert await client.get(NODES, "node-1") == {"ok": 1}
    assert names == ["oven"]


async def test_a_server_with_a_foreign_certificate_is_refused(tmp_path: Path) -> None:
    authority, foreign = trustme.CA(), trustme.CA()
    server_context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    foreign.issue_cert("127.0.0.1").configure_cert(server_context)
    async with served(answer({}), context=server_context) as wire:
        path = kubeconfig(
            tmp_path / "config", {}, server=wire.url, **{"certificate-authority-data": b64(authority.cert_pem.bytes())}
        )
        async with Client(await load_credentials(path), user_agent="dra-kit/test") as client:
            with pytest.raises(Unavailable, match="certificate verify failed"):
                await client.get(NODES, "node-1")
    assert wire.requests == []


async def test_the_name_in_the_servers_certificate_may_differ(tmp_path: Path) -> None:
    authority = trustme.CA()
    server_context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("api.internal").configure_cert(server_context)
    async with served(answer({"ok": 1}), context=server_context) as wire:
        cluster = {
            "certificate-authority-data": b64(authority.cert_pem.bytes()),
            "tls-server-name": "api.internal",
        }
        path = kubeconfig(tmp_path / "config", {}, server=wire.url, **cluster)
        async with Client(await load_credentials(path), user_agent="dra-kit/test") as client:
            assert await client.get(NODES, "node-1") == {"ok": 1}


async def test_an_exec_plugin_may_give_a_certificate(tmp_path: Path) -> None:
    pair = trustme.CA().issue_cert("oven.example")
    status = {
        "clientCertificateData": pair.cert_chain_pems[0].bytes().decode(),
        "clientKeyData": pair.private_key_pem.bytes().decode(),
    }
    path = kubeconfig(tmp_path / "config", plugin(tmp_path, PRINT_STATUS.replace("STATUS", repr(status))))
    credentials = await load_credentials(path)
    assert credentials.ssl is not None
    assert await credentials.authorization() is None


def test_no_key_is_left_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    pair = trustme.CA().issue_cert("oven.example")
    user = {
        "client-certificate-data": b64(pair.cert_chain_pems[0].bytes()),
        "client-key-data": b64(pair.private_key_pem.bytes()),
    }
    path = kubeconfig(tmp_path / "config", user)
    assert asyncio.run(load_credentials(path)).ssl is not None
    assert list(tmp_path.iterdir()) == [path]


def id_token(expires: int) -> str:
    parts = [json.dumps(part).encode() for part in ({"alg": "none"}, {"exp": expires})]
    return ".".join([*(b64(part).rstrip("=") for part in parts), "x"])


def oidc_user(issuer: str, **config: str) -> dict[str, Any]:
    client = {"client-id": "dra", "client-secret": "s", "idp-issuer-url": issuer}
    return {"auth-provider": {"name": "oidc", "config": {**client, "refresh-token": "r1", **config}}}


async def test_an_expired_id_token_is_renewed_and_kept_in_the_kubeconfig(tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    fresh = id_token(4_000_000_000)

    async with served(context=context) as wire:
        wire.answers = [answer({"token_endpoint": f"{wire.url}/token"}), answer({"id_token": fresh})]
        config = {
            "id-token": id_token(1),
            "idp-certificate-authority-data": b64(authority.cert_pem.bytes()),
        }
        path = kubeconfig(tmp_path / "config", oidc_user(wire.url, **config))
        credentials = await load_credentials(path)
        assert await credentials.authorization() == f"Bearer {fresh}"
    assert wire.paths == ["/.well-known/openid-configuration", "/token"]
    assert wire.bodies[1] == "grant_type=refresh_token&refresh_token=r1"
    assert wire.headers("Authorization")[1] == f"Basic {b64(b'dra:s')}"
    kept = yaml.safe_load(path.read_text())["users"][0]["user"]["auth-provider"]["config"]
    assert (kept["id-token"], kept["refresh-token"]) == (fresh, "r1")


async def test_an_identity_provider_with_a_foreign_certificate_gets_no_token(tmp_path: Path) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    async with served(answer({}), context=context) as wire:
        path = kubeconfig(tmp_path / "config", oidc_user(wire.url))
        with pytest.raises(ConfigurationError, match="certificate verify failed"):
            await load_credentials(path)
    assert wire.requests == []


async def test_rejection_of_the_identity_provider_is_reported(tmp_path: Path) -> None:
    async with served() as wire:
        wire.answers = [answer({"token_endpoint": f"{wire.url}/token"}), answer({"error": "invalid_grant"}, 400)]
        path = kubeconfig(tmp_path / "config", oidc_user(wire.url))
        with pytest.raises(ConfigurationError, match="log in again"):
            await load_credentials(path)
