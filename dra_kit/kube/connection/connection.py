"""Where the API server is and who we are to it: one snapshot of a kubeconfig or a service account."""

from __future__ import annotations

import ipaddress
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Connection:
    """What one reading of the credentials gave.

    Attributes:
        server: URL without a trailing slash; may hold a path.
        authorization: the ``Authorization`` header, None when certificates (or nothing) identify us.
        lifetime: seconds after which the credentials should be read again, None when only a 401 is a reason to.
        ca: PEM of the certificate authorities to trust, None for those of the system.
        certificate: PEM of the client certificate and its chain.
        private_key: PEM of the client certificate's key.
        insecure: do not verify the server's certificate.
        tls_server_name: the name to verify instead of the server's host.
        proxy: URL of an HTTP proxy.
        namespace: default namespace of the context or of the pod.
        socket: path of a unix socket where the server takes requests without TLS; None to connect to its address.
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
        """Return whether one SSL context serves both."""

        def tls(connection: Connection) -> tuple[object, ...]:
            return (
                connection.server.partition("://")[0],
                connection.ca,
                connection.certificate,
                connection.private_key,
                connection.insecure,
            )

        return tls(self) == tls(other)

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return the SSL context for this server, None for a plain HTTP one and over a unix socket.

        Raises:
            ValueError: a certificate or key is no PEM, or they do not belong together (``ssl.SSLError`` is an OSError
                and stays one).
        """
        if self.socket is not None or not self.server.startswith("https://"):
            return None
        context = ssl.create_default_context(cadata=self.ca.decode("ascii") if self.ca else None)
        if self.ca:
            # Python 3.13 demands extensions that cluster CAs often lack; Go, and so every other client, does not
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.certificate:
            # OpenSSL reads key pairs from files only: one in memory, so that no key touches a disk
            with os.fdopen(os.memfd_create("client-certificate"), "wb") as file:
                file.write(self.certificate + b"\n" + (self.private_key or b""))
                file.flush()
                context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
        return context


def proxy_from_environment(server: str, environment: Mapping[str, str]) -> str | None:
    """Return the proxy by HTTPS_PROXY, HTTP_PROXY and NO_PROXY for a server, by the rules of Go's net/http.

    Python's own rules know no CIDR blocks in NO_PROXY, with which clusters exempt their service addresses.

    Args:
        server: URL of the API server.
        environment: environment variables; the upper-case spelling wins.

    Returns:
        URL of the proxy, None for a direct connection.
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
