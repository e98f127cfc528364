"""Imports kubernetes-asyncio's kubeconfig modules without its generated client, which takes 35 MiB.

It also replaces kubernetes-asyncio's OpenID Connect requestor, which does not verify the provider's certificate.
"""

from __future__ import annotations

import base64
import builtins
import functools
import importlib.machinery
import importlib.util
import ssl
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import aiohttp

from dra_kit.errors import ConfigurationError


class OpenIDRequestor:
    """Exchanges a refresh token for a new ID token (OpenID Connect Core 1.0, section 12).

    It has the interface of the class of the same name in kubernetes-asyncio, which it replaces: that one (36.1.0) does
    not verify the provider's certificate unless the kubeconfig has its CA, and fails if it has.

    Args:
        issuer_url: the provider, which serves ``/.well-known/openid-configuration``.
        ssl_ca_cert: file with the provider's CA, None for those of the system.
    """

    def __init__(self, client_id: str, client_secret: str, issuer_url: str, ssl_ca_cert: str | None = None) -> None:
        self._authorization = aiohttp.encode_basic_auth(client_id, client_secret)
        self._issuer_url = issuer_url.rstrip("/")
        self._ssl = ssl.create_default_context(cafile=ssl_ca_cert)

    async def refresh_token(self, refresh_token: str) -> dict[str, str]:
        """Return new ``id_token`` and ``refresh_token``; the latter is the old one if the provider does not rotate it.

        Raises:
            ConfigurationError: the provider does not respond, or rejects the request.
        """
        try:
            async with aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=self._ssl),
                timeout=aiohttp.ClientTimeout(total=30),
                raise_for_status=True,
                trust_env=True,
            ) as session:
                async with session.get(f"{self._issuer_url}/.well-known/openid-configuration") as response:
                    endpoint = (await response.json())["token_endpoint"]
                grant = {"grant_type": "refresh_token", "refresh_token": refresh_token}
                headers = {"Authorization": self._authorization}
                async with session.post(endpoint, data=grant, headers=headers) as response:
                    answer = await response.json()
                return {"id_token": answer["id_token"], "refresh_token": answer.get("refresh_token", refresh_token)}
        except (aiohttp.ClientError, TimeoutError, ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(
                f"OpenID Connect provider {self._issuer_url} gave no new ID token: {error!r}; log in again"
            ) from error


class ClientConfiguration:
    """The attributes that the configuration modules set; replaces ``kubernetes_asyncio.client.Configuration``."""

    def __init__(self) -> None:
        self.host = ""
        self.api_key: dict[str, str] = {}
        self.ssl_ca_cert: Any = None
        self.cert_file: Any = None
        self.key_file: Any = None
        self.verify_ssl = True
        self.tls_server_name: str | None = None
        self.proxy: str | None = None
        self.refresh_api_key_hook: object = None


@functools.cache
def kubeconfig_modules() -> SimpleNamespace:
    """Return private copies of kubernetes-asyncio's configuration modules.

    They run with an import function of their own, which gives them each other, and stand-ins for the generated client
    and for the OpenID Connect requestor. ``sys.modules`` is never touched, so an author's own
    ``import kubernetes_asyncio`` gets the real package, also when another thread imports it at this moment.
    """
    spec = importlib.machinery.PathFinder.find_spec("kubernetes_asyncio")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigurationError("kubernetes-asyncio is not installed; install dra-kit with its dependencies")
    folder = Path(next(iter(spec.submodule_search_locations))) / "config"
    modules: dict[str, Any] = {
        "kubernetes_asyncio.client": SimpleNamespace(Configuration=ClientConfiguration, ApiClient=object),
        "kubernetes_asyncio.config.openid": SimpleNamespace(OpenIDRequestor=OpenIDRequestor),
    }

    def import_(
        name: str,
        globals: Mapping[str, object] | None = None,  # noqa: A002  (names of __import__)
        locals: Mapping[str, object] | None = None,  # noqa: A002
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        package, _, leaf = name.rpartition(".")
        if package not in {"kubernetes_asyncio", "kubernetes_asyncio.config"}:
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        if name not in modules:
            modules[name] = _execute(name, folder / f"{leaf}.py", import_)
        return modules[name]

    kubeconfig = import_("kubernetes_asyncio.config.kube_config")
    kubeconfig.FileOrData = _in_memory(kubeconfig.FileOrData)
    return SimpleNamespace(
        kubeconfig=kubeconfig,
        incluster=import_("kubernetes_asyncio.config.incluster_config"),
        exception=import_("kubernetes_asyncio.config.config_exception").ConfigException,
    )


def _execute(name: str, path: Path, import_: Callable[..., Any]) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"{path} is missing; install a kubernetes-asyncio that dra-kit supports")
    module = importlib.util.module_from_spec(spec)
    # an import statement calls the __import__ that its module's globals name
    vars(module)["__builtins__"] = {**vars(builtins), "__import__": import_}
    spec.loader.exec_module(module)
    return module


def _in_memory(file_or_data: Any) -> type:
    """Return a ``FileOrData`` that hands out PEM instead of writing keys to temporary files."""

    class PemOrFile(file_or_data):  # type: ignore[misc]
        def __init__(self, obj: Any, *args: Any, **kwargs: Any) -> None:
            super().__init__({} if obj is None else obj, *args, **kwargs)

        def as_file(self) -> bytes | None:
            data = self.as_data()
            if not data:
                return None
            if data.startswith("-----BEGIN"):  # an exec plugin's; those of a kubeconfig are base64
                return str(data).encode()
            return base64.b64decode("".join(data.split()), validate=True)

    return PemOrFile
