from __future__ import annotations

import asyncio
import logging
import ssl
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from dra_kit.client.api import Client
from dra_kit.client.credentials import Connection, Credentials, load_credentials
from dra_kit.client.resources import NODES
from dra_kit.errors import ConfigurationError
from tests.unit.client.kubeconfigs import PRINT_STATUS, b64, kubeconfig, plugin
from tests.unit.client.wire import answer, served

# kubernetes-asyncio compares times with functions that Python 3.12 deprecates
pytestmark = pytest.mark.filterwarnings(r"ignore:datetime\.datetime\.utc:DeprecationWarning")


async def test_a_token_of_a_kubeconfig(tmp_path: Path) -> None:
    credentials = await load_credentials(kubeconfig(tmp_path / "config", {"token": "abc"}))
    assert credentials.connection.server == "https://api.example"
    assert credentials.connection.namespace == "kitchen"
    assert credentials.connection.proxy is None
    assert await credentials.authorization() == "Bearer abc"


async def test_a_password_of_a_kubeconfig(tmp_path: Path) -> None:
    credentials = await load_credentials(kubeconfig(tmp_path / "config", {"username": "u", "password": "p"}))
    assert await credentials.authorization() == f"Basic {b64(b'u:p')}"


async def test_a_context_can_be_named(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "config", {"token": "abc"})
    config = yaml.safe_load(path.read_text())
    config["contexts"].append({"name": "other", "context": {"cluster": "d", "user": "v"}})
    config["clusters"].append({"name": "d", "cluster": {"server": "https://other.example/"}})
    config["users"].append({"name": "v", "user": {"token": "xyz"}})
    path.write_text(yaml.safe_dump(config))
    credentials = await load_credentials(path, "other")
    assert (credentials.connection.server, credentials.connection.namespace) == ("https://other.example", None)
    assert await credentials.authorization() == "Bearer xyz"


async def test_a_user_may_be_missing(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "config", {})
    config = yaml.safe_load(path.read_text())
    del config["contexts"][0]["context"]["user"], config["users"]
    path.write_text(yaml.safe_dump(config))
    assert await (await load_credentials(path)).authorization() is None


async def test_settings_of_the_cluster(tmp_path: Path) -> None:
    cluster: dict[str, Any] = {
        "insecure-skip-tls-verify": True,
        "tls-server-name": "other",
        "proxy-url": "http://proxy.example:1",
    }
    credentials = await load_credentials(kubeconfig(tmp_path / "config", {"token": "abc"}, **cluster))
    assert credentials.ssl is not None
    assert credentials.ssl.verify_mode is ssl.CERT_NONE
    assert credentials.connection.tls_server_name == "other"
    assert credentials.connection.proxy == "http://proxy.example:1"


async def test_the_kubeconfig_of_the_environment_may_be_several_files(tmp_path: Path) -> None:
    first = kubeconfig(tmp_path / "first", {"token": "abc"})
    second = tmp_path / "second"
    second.write_text(yaml.safe_dump({"users": [{"name": "unused", "user": {}}]}))
    environment = {"KUBECONFIG": f"{tmp_path / 'missing'}:{first}:{second}"}
    credentials = await load_credentials(environment=environment, service_account=tmp_path)
    assert await credentials.authorization() == "Bearer abc"


async def test_the_kubeconfig_of_the_home_folder_is_the_last_resort(tmp_path: Path) -> None:
    (tmp_path / ".kube").mkdir()
    kubeconfig(tmp_path / ".kube" / "config", {"token": "home"})
    credentials = await load_credentials(environment={"HOME": str(tmp_path)}, service_account=tmp_path / "none")
    assert await credentials.authorization() == "Bearer home"


async def test_a_service_account(tmp_path: Path) -> None:
    environment = service_account(tmp_path, "abc\n")
    credentials = await load_credentials(environment=environment, service_account=tmp_path)
    assert credentials.connection.server == "https://10.96.0.1:443"
    assert credentials.connection.namespace == "kitchen"
    assert await credentials.authorization() == "Bearer abc"


async def test_a_kubeconfig_of_the_environment_goes_before_the_service_account(tmp_path: Path) -> None:
    environment = service_account(tmp_path, "pod")
    environment["KUBECONFIG"] = str(kubeconfig(tmp_path / "config", {"token": "abc"}))
    credentials = await load_credentials(environment=environment, service_account=tmp_path)
    assert await credentials.authorization() == "Bearer abc"


async def test_a_rotated_service_account_token_is_read_after_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = service_account(tmp_path, "old")
    credentials = await load_credentials(environment=environment, service_account=tmp_path)
    context = credentials.ssl
    (tmp_path / "token").write_text("new")
    assert await credentials.authorization() == "Bearer old"
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 61)
    assert await credentials.authorization() == "Bearer new"
    assert credentials.ssl is context


async def test_a_rotated_service_account_token_is_read_on_a_401(tmp_path: Path) -> None:
    environment = service_account(tmp_path, "old")
    credentials = await load_credentials(environment=environment, service_account=tmp_path)
    assert not await credentials.refresh("Bearer old")
    (tmp_path / "token").write_text("new")
    assert await credentials.refresh("Bearer old")
    assert await credentials.authorization() == "Bearer new"


async def test_a_token_file_of_a_kubeconfig_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("old\n")
    credentials = await load_credentials(kubeconfig(tmp_path / "config", {"tokenFile": "token"}))
    assert await credentials.authorization() == "Bearer old"
    (tmp_path / "token").write_text("new\n")
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 61)
    assert await credentials.authorization() == "Bearer new"


async def test_credentials_that_cannot_be_renewed_are_still_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> Connection:
        raise ConfigurationError("the file is gone")

    credentials = Credentials(Connection("http://x", "Bearer old", lifetime=0), fail)
    with caplog.at_level(logging.WARNING):
        assert await credentials.authorization() == "Bearer old"
        assert await credentials.authorization() == "Bearer old"
    assert [record.getMessage() for record in caplog.records] == [
        "Credentials could not be renewed, using the last ones: the file is gone"
    ]
    with pytest.raises(ConfigurationError, match="the file is gone"):
        await credentials.refresh("Bearer old")


async def test_concurrent_renewals_are_one() -> None:
    loads = 0

    async def load() -> Connection:
        nonlocal loads
        loads += 1
        await asyncio.sleep(0)
        return Connection("http://x", f"Bearer {loads}")

    credentials = Credentials(Connection("http://x", "Bearer 0"), load)
    assert await asyncio.gather(*(credentials.refresh("Bearer 0") for _ in range(10))) == [True] * 10
    assert loads == 1
    assert await credentials.refresh("Bearer 0")
    assert loads == 1


def test_credentials_serve_several_loops() -> None:
    async def load() -> Connection:
        return Connection("http://x", "Bearer new", lifetime=0)

    credentials = Credentials(Connection("http://x", "Bearer old", lifetime=0), load)
    assert asyncio.run(credentials.authorization()) == "Bearer new"
    assert asyncio.run(credentials.authorization()) == "Bearer new"


async def test_an_exec_plugin_runs_until_its_token_expires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status = '{"token": "t" + os.environ["SECRET"], "expirationTimestamp": "2100-01-01T00:00:00Z"}'
    path = kubeconfig(tmp_path / "config", plugin(tmp_path, PRINT_STATUS.replace("STATUS", status)))
    credentials = await load_credentials(path)
    assert await credentials.authorization() == "Bearer ts3cret"
    assert await credentials.authorization() == "Bearer ts3cret"
    assert (tmp_path / "runs").read_text() == "x"
    century = time.monotonic() + 100 * 365 * 24 * 3600
    monkeypatch.setattr(time, "monotonic", lambda: century)
    await credentials.authorization()
    assert (tmp_path / "runs").read_text() == "xx"


async def test_an_exec_plugin_runs_again_on_a_401(tmp_path: Path) -> None:
    status = '{"token": open(os.path.dirname(__file__) + "/runs").read()}'
    credentials = await load_credentials(
        kubeconfig(tmp_path / "config", plugin(tmp_path, PRINT_STATUS.replace("STATUS", status)))
    )
    assert await credentials.refresh("Bearer x")
    assert await credentials.authorization() == "Bearer xx"


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("sys.exit('please log in')", "please log in"),
        ("print('no json')", "failed to decode process output"),
        ("print('{}')", "malformed response"),
    ],
)
async def test_failing_exec_plugin_is_reported(tmp_path: Path, script: str, problem: str) -> None:
    path = kubeconfig(tmp_path / "config", plugin(tmp_path, script))
    with pytest.raises(ConfigurationError, match=problem):
        await load_credentials(path)


async def test_missing_exec_plugin_is_reported(tmp_path: Path) -> None:
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "/no/such/plugin"}}
    with pytest.raises(ConfigurationError, match="/no/such/plugin"):
        await load_credentials(kubeconfig(tmp_path / "config", user))


async def test_error_without_credentials_names_every_location(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        await load_credentials(environment={"HOME": str(tmp_path)}, service_account=tmp_path / "account")
    for place in "$KUBECONFIG", str(tmp_path / "account"), str(tmp_path / ".kube/config"):
        assert place in str(caught.value)


async def test_a_kubeconfig_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"looked for kubeconfig .*/missing"):
        await load_credentials(tmp_path / "missing")


@pytest.mark.parametrize("text", ["", "[]", "text", "{", "a: b", "clusters: 7\ncurrent-context: x\ncontexts: []"])
async def test_a_broken_kubeconfig_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=f"kubeconfig {path}: "):
        await load_credentials(path)


async def test_a_context_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"object with name other in .*contexts list"):
        await load_credentials(kubeconfig(tmp_path / "config", {"token": "abc"}), "other")


@pytest.mark.parametrize(
    ("user", "cluster", "problem"),
    [
        ({"token": "abc", "as": "admin"}, {}, "impersonation"),
        ({"token": "abc"}, {"proxy-url": "socks5://proxy"}, "proxy socks5://proxy is not supported"),
        ({"token": "abc"}, {"server": "api.example:6443"}, "not an http:// or https:// URL"),
        ({"client-certificate": "missing.pem", "client-key": "missing.pem"}, {}, "missing.pem"),
        ({"client-certificate-data": b64(b"x"), "client-key-data": b64(b"x")}, {}, "compare certificate-authority"),
        ({"client-certificate-data": "?"}, {}, "kubeconfig "),
        ({"token": "abc"}, {"certificate-authority-data": b64(b"x")}, "compare certificate-authority"),
    ],
)
async def test_unusable_kubeconfig_is_rejected(
    tmp_path: Path, user: dict[str, Any], cluster: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        await load_credentials(kubeconfig(tmp_path / "config", user, **cluster))


async def test_proxy_is_used(tmp_path: Path) -> None:
    async with served(answer({"via": "proxy"})) as wire:
        path = kubeconfig(tmp_path / "config", {}, server="http://api.example", **{"proxy-url": wire.url})
        async with Client(await load_credentials(path), user_agent="dra-kit/test") as client:
            assert await client.get(NODES, "node-1") == {"via": "proxy"}
    assert [request.host for request in wire.requests] == ["api.example"]


def test_reading_a_kubeconfig_does_not_import_kubernetes_asyncio(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "config", {"token": "abc"})
    script = f"""
        import asyncio, pathlib, sys
        from dra_kit.client.credentials import load_credentials
        credentials = asyncio.run(load_credentials(pathlib.Path({str(path)!r})))
        assert asyncio.run(credentials.authorization()) == "Bearer abc"
        assert not [name for name in sys.modules if name.startswith("kubernetes_asyncio")]
        import kubernetes_asyncio.client, kubernetes_asyncio.config.kube_config as real
        assert kubernetes_asyncio.client.CoreV1Api and kubernetes_asyncio.client.V1Pod
        assert real.Configuration is kubernetes_asyncio.client.Configuration
        assert asyncio.run(load_credentials(pathlib.Path({str(path)!r}))).connection.server == "https://api.example"
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=240)


def service_account(folder: Path, token: str) -> dict[str, str]:
    (folder / "token").write_text(token)
    (folder / "namespace").write_text("kitchen\n")
    (folder / "ca.crt").write_bytes(trustme.CA().cert_pem.bytes())
    return {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}


@pytest.mark.parametrize("missing", ["ca.crt", "KUBERNETES_SERVICE_HOST"])
async def test_incomplete_service_account_is_reported(tmp_path: Path, missing: str) -> None:
    environment = service_account(tmp_path, "abc")
    environment.pop(missing, None)
    (tmp_path / missing).unlink(missing_ok=True)
    with pytest.raises(ConfigurationError, match=f"service account {tmp_path}: .*automountServiceAccountToken"):
        await load_credentials(environment=environment, service_account=tmp_path)
