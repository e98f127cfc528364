"""Address of the API server and the process's credentials, from kubeconfig or service account.

kubernetes-asyncio reads them. Its generated client, which takes 35 MiB, is not imported, and its OpenID Connect
requestor, which does not verify the provider's certificate, is replaced.
"""

from __future__ import annotations

import asyncio
import base64
import builtins
import datetime as dt
import functools
import importlib.machinery
import importlib.util
import ipaddress
import logging
import os
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from ssl import SSLContext
from types import ModuleType, SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from dra_kit.errors import ConfigurationError

log: logging.Logger = logging.getLogger(__name__)
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_REREAD_SECONDS = 60.0  # like client-go
_RETRY_SECONDS = 10.0
_PLUGIN_SECONDS = 60.0  # some open a browser and wait for the user
_RENEW_AT = 0.8  # fraction of the lifetime of an exec plugin's token
_EXPIRING_PROVIDERS = ("oidc", "gcp")


class Credentials:
    """The API server's address and current credentials; shared by all clients of a process.

    It may be used from several event loops.

    Args:
        connection: the first values.
        load: reads the credentials again; None if they never change.

    Attributes:
        connection: the last values read; :meth:`authorization` and :meth:`refresh` may replace it. Its ``socket`` never
            changes.
        ssl: the SSL context, None without TLS; a new object only when certificates have changed.

    Raises:
        ConfigurationError: a certificate or key cannot be used.
    """

    def __init__(self, connection: Connection, load: Callable[[], Awaitable[Connection]] | None = None) -> None:
        self._load = load
        self._reloads: dict[asyncio.AbstractEventLoop, asyncio.Task[None]] = {}
        self.connection: Connection = connection
        self.ssl: SSLContext | None = _ssl_context(connection)
        self._renew_at = _deadline(connection)

    async def authorization(self) -> str | None:
        """Return the current ``Authorization`` header, such as ``Bearer …``; None if there is none to send.

        Token files are read again after a minute; exec plugins run again after four fifths of their token's lifetime.
        If that fails, the last header is used and the failure is logged: the server decides whether it is still valid.
        """
        if self._renew_at is not None and time.monotonic() >= self._renew_at:
            try:
                await self._reload()
            except ConfigurationError as error:
                self._renew_at = time.monotonic() + _RETRY_SECONDS
                log.warning("Credentials could not be renewed, using the last ones: %s", error)
        return self.connection.authorization

    async def refresh(self, rejected: str | None = None) -> bool:
        """Read the credentials again because the server answered 401.

        Concurrent calls share one reading.

        Args:
            rejected: the header that the server rejected; if it is no longer the current one, nothing is read.

        Returns:
            Whether there are new credentials to try.

        Raises:
            ConfigurationError: the credentials can no longer be read.
        """
        before = self.connection
        if rejected == before.authorization:
            await self._reload()
        return rejected != self.connection.authorization or not before.same_tls(self.connection)

    async def _reload(self) -> None:
        if self._load is None:
            return
        # locks and tasks belong to one loop; two loops that read at the same time do no harm
        loop = asyncio.get_running_loop()
        task = self._reloads.get(loop)
        if task is None:
            task = self._reloads[loop] = loop.create_task(self._read(self._load))
            task.add_done_callback(lambda _: self._reloads.pop(loop, None))
        await asyncio.shield(task)

    async def _read(self, load: Callable[[], Awaitable[Connection]]) -> None:
        connection = await load()
        if not connection.same_tls(self.connection):
            self.ssl = _ssl_context(connection)
        self.connection = connection
        self._renew_at = _deadline(connection)


async def load_credentials(
    kubeconfig: Path | None = None,
    context: str | None = None,
    *,
    service_account: Path = SERVICE_ACCOUNT,
    environment: Mapping[str, str] = os.environ,
) -> Credentials:
    """Find the credentials of this process.

    Args:
        kubeconfig: a kubeconfig; None uses ``$KUBECONFIG`` (several files, separated by colons, are merged), else the
            service account if its files exist, else ``~/.kube/config``.
        context: a context of the kubeconfig, None for its current one.
        service_account: directory with ``token``, ``ca.crt`` and ``namespace``.
        environment: environment variables: ``KUBECONFIG``, ``HOME``, ``KUBERNETES_SERVICE_HOST`` and ``_PORT``, and
            those of proxies.

    Raises:
        ConfigurationError: no credentials were found, or those found cannot be used.
    """
    load = _find(kubeconfig, context, service_account, environment)
    return Credentials(await load(), load)


def _find(
    kubeconfig: Path | None, context: str | None, service_account: Path, environment: Mapping[str, str]
) -> Callable[[], Awaitable[Connection]]:
    named = str(kubeconfig or environment.get("KUBECONFIG") or "")
    if not named and context is None and (service_account / "token").exists():
        return functools.partial(_read_service_account, service_account, environment)
    paths = named or str(Path(environment.get("HOME") or "~").expanduser() / ".kube" / "config")
    if not any(Path(path).expanduser().is_file() for path in paths.split(os.pathsep) if path):
        looked = f"kubeconfig {paths}" if named else f"$KUBECONFIG (unset), {service_account}/token, {paths}"
        raise ConfigurationError(
            f"no credentials for Kubernetes; looked for {looked}",
            remedy="name an existing kubeconfig, or run in a pod with a service account",
        )
    return functools.partial(_read_kubeconfig, paths, context, environment)


async def _read_service_account(directory: Path, environment: Mapping[str, str]) -> Connection:
    modules = kubeconfig_modules()
    configuration = ClientConfiguration()
    try:
        modules.incluster.InClusterConfigLoader(
            str(directory / "token"), str(directory / "ca.crt"), environ=environment
        ).load_and_set(configuration)
        namespace = directory / "namespace"
        return Connection(
            server=configuration.host,
            authorization=_one_line(configuration.api_key["BearerToken"]),
            lifetime=_REREAD_SECONDS,
            ca=(directory / "ca.crt").read_bytes(),
            proxy=proxy_from_environment(configuration.host, environment),
            namespace=namespace.read_text().strip() if namespace.exists() else None,
        )
    except (modules.exception, OSError, ValueError) as error:
        raise ConfigurationError(
            f"service account {directory}: {error}", remedy="is automountServiceAccountToken on for this pod?"
        ) from error


async def _read_kubeconfig(paths: str, context: str | None, environment: Mapping[str, str]) -> Connection:
    modules = kubeconfig_modules()
    configuration = ClientConfiguration()
    try:
        async with asyncio.timeout(_PLUGIN_SECONDS):
            files = modules.kubeconfig.KubeConfigMerger(paths)
            loader = modules.kubeconfig.KubeConfigLoader(
                files.config,
                context,
                config_base_path=None,  # paths in a file are relative to its folder
                # kubernetes-asyncio's own persister (36.1.0) has a wrong signature
                config_persister=lambda _: files.save_changes(),
            )
            await loader.load_and_set(configuration)
    except ConfigurationError:
        raise
    except TimeoutError as error:
        raise ConfigurationError(
            f"kubeconfig {paths}: no credentials within {_PLUGIN_SECONDS:g} s", remedy="run its exec command manually"
        ) from error
    except Exception as error:  # a wrong type in the file, a plugin or a provider raises anything
        expected = isinstance(error, (modules.exception, OSError))
        text = str(error) if expected else f"{type(error).__name__}: {error}"
        raise ConfigurationError(
            f"kubeconfig {paths}: {' '.join(text.split())}",
            remedy=f"does `kubectl --kubeconfig {paths} version` work?",
        ) from error
    user = loader._user  # noqa: SLF001 - the kind of user is not public
    proxy = configuration.proxy or proxy_from_environment(configuration.host, environment)
    _check_supported(paths, configuration.host, proxy, user)
    return Connection(
        server=configuration.host,
        authorization=_one_line(configuration.api_key.get("BearerToken")),
        lifetime=_lifetime(loader, user),
        ca=configuration.ssl_ca_cert,
        certificate=configuration.cert_file,
        private_key=configuration.key_file,
        insecure=not configuration.verify_ssl,
        tls_server_name=configuration.tls_server_name,
        proxy=proxy,
        namespace=loader.current_context["context"].get("namespace") or None,
    )


def _check_supported(paths: str, server: str, proxy: str | None, user: Any) -> None:
    if not server.startswith(("http://", "https://")):
        raise ConfigurationError(
            f"kubeconfig {paths}: server {server!r} is not an http:// or https:// URL", remedy="correct it"
        )
    if proxy is not None and not proxy.startswith(("http://", "https://")):
        raise ConfigurationError(f"kubeconfig {paths}: proxy {proxy} is not supported", remedy="use an HTTP proxy")
    if user is not None and any(key in user for key in ("as", "as-uid", "as-groups", "as-user-extra")):
        raise ConfigurationError(
            f"kubeconfig {paths}: impersonation (as: …) is not supported", remedy="use another user"
        )


def _lifetime(loader: Any, user: Any) -> float | None:
    expiry = getattr(loader, "exec_plugin_expiry", None)
    if expiry is not None:
        remaining = (expiry - dt.datetime.now(dt.UTC)).total_seconds()
        return float(max(1.0, remaining * _RENEW_AT))
    if loader.provider in _EXPIRING_PROVIDERS or (user is not None and "tokenFile" in user):
        return _REREAD_SECONDS
    return None


def _one_line(header: str | None) -> str | None:
    """Return a token without the newline at the end of its file, which is not allowed in a header."""
    return header.strip() if header else None


def _deadline(connection: Connection) -> float | None:
    return None if connection.lifetime is None else time.monotonic() + connection.lifetime


def _ssl_context(connection: Connection) -> SSLContext | None:
    try:
        return connection.ssl_context()
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"certificates for {connection.server} cannot be used: {error}",
            remedy="compare certificate-authority, client-certificate and client-key",
        ) from error


@dataclass(frozen=True, slots=True)
class Connection:
    """The result of reading the credentials once.

    Attributes:
        server: URL without a trailing slash; may include a path.
        authorization: the ``Authorization`` header; None if certificates (or nothing) identify the process.
        lifetime: seconds after which to read the credentials again; None to do so only after a 401.
        ca: PEM of the trusted certificate authorities; None for those of the system.
        certificate: PEM of the client certificate and its chain.
        private_key: PEM of the client certificate's key.
        insecure: do not verify the server's certificate.
        tls_server_name: the name to verify instead of the server's host.
        proxy: URL of an HTTP proxy.
        namespace: default namespace of the context or of the pod.
        socket: path of a unix socket where the server accepts requests without TLS; None to connect to its address.
    """

    server: str
    authorization: str | None = field(default=None, repr=False)
    lifetime: float | None = None
    ca: bytes | None = field(default=None, repr=False)
    certificate: bytes | None = field(default=None, repr=False)
    private_key: bytes | None = field(default=None, repr=False)
    insecure: bool = False
    tls_server_name: str | None = None
    proxy: str | None = None
    namespace: str | None = None
    socket: str | None = None

    def same_tls(self, other: Connection) -> bool:
        """Return whether both can use one SSL context."""
        mine, others = (
            (each.server.partition("://")[0], each.ca, each.certificate, each.private_key, each.insecure)
            for each in (self, other)
        )
        return mine == others

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return the SSL context for this server; None for a plain HTTP server and for a unix socket.

        Raises:
            ValueError: a certificate or key is not PEM, or they do not match (``ssl.SSLError`` is an OSError
                and is raised unchanged).
        """
        if self.socket is not None or not self.server.startswith("https://"):
            return None
        context = ssl.create_default_context(cadata=self.ca.decode("ascii") if self.ca else None)
        if self.ca:
            # Python 3.13 demands extensions that cluster CAs often lack; Go, and so all other clients, does not
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.certificate:
            # OpenSSL reads key pairs only from files: use one in memory, so that no key is written to a disk
            with os.fdopen(os.memfd_create("client-certificate"), "wb") as file:
                file.write(self.certificate + b"\n" + (self.private_key or b""))
                file.flush()
                context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
        return context


def proxy_from_environment(server: str, environment: Mapping[str, str]) -> str | None:
    """Return the URL of the proxy for a server's URL, with the rules of Go's net/http; None for a direct connection.

    They are those of HTTPS_PROXY, HTTP_PROXY and NO_PROXY; the upper-case spelling wins. Python's rules do not support
    CIDR blocks in NO_PROXY, which clusters use to exempt their service addresses.
    """

    def variable(name: str) -> str:
        return environment.get(name) or environment.get(name.lower()) or ""

    url = urlsplit(server)
    host = url.hostname or ""
    proxy = variable("HTTPS_PROXY" if url.scheme == "https" else "HTTP_PROXY")
    if not proxy or _is_loopback(host):
        return None
    port = url.port or (443 if url.scheme == "https" else 80)
    if any(_exempts(entry.strip().lower(), host, port) for entry in variable("NO_PROXY").split(",")):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _exempts(entry: str, host: str, port: int) -> bool:
    if not entry:
        return False
    if entry == "*":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        pass
    else:
        try:
            return address in ipaddress.ip_network(entry.strip("[]"), strict=False)
        except ValueError:
            pass  # host:port, or a name
    name, colon, number = entry.rpartition(":")
    if colon and number.isdigit():
        if int(number) != port:
            return False
        entry = name.strip("[]")
    if entry.startswith("."):
        return host.endswith(entry)
    return host == entry or host.endswith(f".{entry}")


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
