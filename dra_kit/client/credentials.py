"""Who we are to the API server: kubeconfig and service account, read by kubernetes-asyncio's configuration modules.

This is the only module that knows kubernetes-asyncio, and it never imports that package: any submodule of it pulls in
all generated models (1,261 modules, 38 MiB).
"""

from __future__ import annotations

import asyncio
import base64
import builtins
import datetime as dt
import functools
import importlib.machinery
import importlib.util
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from ssl import SSLContext
from types import ModuleType, SimpleNamespace
from typing import Any

from dra_kit.errors import ConfigurationError
from dra_kit.kube.connection.connection import Connection, proxy_from_environment
from dra_kit.kube.connection.oidc import OpenIDRequestor

log: logging.Logger = logging.getLogger(__name__)

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

_REREAD_SECONDS = 60.0  # client-go reads token files again after a minute, too
_RETRY_SECONDS = 10.0
_PLUGIN_SECONDS = 60.0  # some open a browser and wait for the user
_RENEW_AT = 0.8  # of the lifetime of an exec plugin's token
_EXPIRING_PROVIDERS = ("oidc", "gcp")


class Credentials:
    """The API server's address and a current proof of who we are; shared by all clients of a process.

    It may be used from several event loops. Every property shows the last reading, so look at them again after
    :meth:`authorization` or :meth:`refresh`.

    Args:
        connection: the first reading.
        load: reads the credentials again; None when they never change.

    Raises:
        ConfigurationError: a certificate or key cannot be used.
    """

    def __init__(self, connection: Connection, load: Callable[[], Awaitable[Connection]] | None = None) -> None:
        self._load = load
        self._reloads: dict[asyncio.AbstractEventLoop, asyncio.Task[None]] = {}
        self._connection = connection
        self._ssl = _ssl_context(connection)
        self._renew_at = _deadline(connection)

    @property
    def server(self) -> str:
        """URL of the API server, without a trailing slash."""
        return self._connection.server

    @property
    def socket(self) -> str | None:
        """Path of the unix socket to connect to instead of the server's address, without TLS; it never changes."""
        return self._connection.socket

    @property
    def ssl(self) -> SSLContext | None:
        """The SSL context, None without TLS; a new object only when certificates have changed."""
        return self._ssl

    @property
    def tls_server_name(self) -> str | None:
        """The name to verify in the server's certificate instead of its host."""
        return self._connection.tls_server_name

    @property
    def namespace(self) -> str | None:
        """Default namespace of the kubeconfig's context, or the pod's."""
        return self._connection.namespace

    @property
    def proxy(self) -> str | None:
        """URL of the HTTP proxy to go through."""
        return self._connection.proxy

    async def authorization(self) -> str | None:
        """Return the current ``Authorization`` header, such as ``Bearer …``; None when there is none to send.

        Token files are read again after a minute, exec plugins run again after four fifths of their token's lifetime.
        When that fails the last header stays, and the failure is logged: the server says whether it is still good.
        """
        if self._renew_at is not None and time.monotonic() >= self._renew_at:
            try:
                await self._reload()
            except ConfigurationError as error:
                self._renew_at = time.monotonic() + _RETRY_SECONDS
                log.warning("Credentials could not be renewed, going on with the last ones: %s", error)
        return self._connection.authorization

    async def refresh(self, rejected: str | None = None) -> bool:
        """Read the credentials again because the server answered 401.

        Calls at one time share one reading.

        Args:
            rejected: the header the server refused; when it is not the current one any more, nothing is read.

        Returns:
            Whether there is something new to try.

        Raises:
            ConfigurationError: the credentials cannot be read any more.
        """
        before = self._connection
        if rejected == before.authorization:
            await self._reload()
        return rejected != self._connection.authorization or not before.same_tls(self._connection)

    async def _reload(self) -> None:
        if self._load is None:
            return
        # locks and tasks belong to one loop; two loops that read at one time do no harm
        loop = asyncio.get_running_loop()
        task = self._reloads.get(loop)
        if task is None:
            task = self._reloads[loop] = loop.create_task(self._read(self._load))
            task.add_done_callback(lambda _: self._reloads.pop(loop, None))
        await asyncio.shield(task)

    async def _read(self, load: Callable[[], Awaitable[Connection]]) -> None:
        connection = await load()
        if not connection.same_tls(self._connection):
            self._ssl = _ssl_context(connection)
        self._connection = connection
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
        kubeconfig: a kubeconfig; None takes ``$KUBECONFIG`` (several, separated by colons, are merged), else the
            service account when its files exist, else ``~/.kube/config``.
        context: a context of the kubeconfig, None for its current one.
        service_account: directory with ``token``, ``ca.crt`` and ``namespace``.
        environment: environment variables: ``KUBECONFIG``, ``HOME``, ``KUBERNETES_SERVICE_HOST`` and ``_PORT``, and
            those of proxies.

    Raises:
        ConfigurationError: nothing was found, or what was found cannot be used.
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
    modules = _configuration_modules()
    configuration = _Configuration()
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
    modules = _configuration_modules()
    configuration = _Configuration()
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
            f"kubeconfig {paths}: no credentials within {_PLUGIN_SECONDS:g} s", remedy="run its exec command by hand"
        ) from error
    except Exception as error:  # a wrong type in the file, a plugin or a provider raises anything
        expected = isinstance(error, (modules.exception, OSError))
        text = str(error) if expected else f"{type(error).__name__}: {error}"
        raise ConfigurationError(
            f"kubeconfig {paths}: {' '.join(text.split())}",
            remedy=f"does `kubectl --kubeconfig {paths} version` work?",
        ) from error
    user = loader._user  # noqa: SLF001 - what kind of user it is has no public name
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
            f"kubeconfig {paths}: server {server!r} is no http:// or https:// URL", remedy="correct it"
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
    """Return a token without the newline at the end of its file, which no header may have."""
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


class _Configuration:
    """What the configuration modules fill in; stands for ``kubernetes_asyncio.client.Configuration``."""

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
def _configuration_modules() -> SimpleNamespace:
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
        "kubernetes_asyncio.client": SimpleNamespace(Configuration=_Configuration, ApiClient=object),
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
