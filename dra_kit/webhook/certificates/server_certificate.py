"""The webhook's certificate and key: read, and read again when they are replaced."""

from __future__ import annotations

import asyncio
import os
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol

from dra_kit.errors import ConfigurationError

_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17  # with a year of two digits
_FIRST_OF_1900S: Final = "50"


class CertificateSource(Protocol):
    """Where certificate and key come from; ``str()`` names it in errors."""

    def read(self) -> tuple[bytes, bytes] | None:
        """Return the certificate with its chain and the unencrypted key, in PEM; called in a thread.

        None where they are not there yet and will be later; nobody is served until then.

        Raises:
            ConfigurationError: they cannot be read.
        """
        ...


class CertificateFiles:
    """A certificate that somebody else makes and renews, such as cert-manager.

    Args:
        cert: PEM file with the certificate and its chain.
        key: PEM file with its private key, not encrypted.
    """

    def __init__(self, cert: Path, key: Path) -> None:
        self._cert = cert
        self._key = key

    def __str__(self) -> str:
        return f"{self._cert} and private key {self._key}"

    def read(self) -> tuple[bytes, bytes]:
        """See :class:`CertificateSource`."""
        return _content(self._cert, "certificate"), _content(self._key, "private key")


class ServerCertificate:
    """A server's SSL context that follows a certificate's rotation, without closing a connection.

    Args:
        source: where certificate and key come from.

    Raises:
        ConfigurationError: they cannot be read, or they make no pair.
    """

    def __init__(self, source: CertificateSource) -> None:
        self._source = source
        self._loaded = source.read()
        self.context: ssl.SSLContext = _context()
        if self._loaded is not None:
            self._check(self._loaded)
            _load(self.context, self._loaded)

    def not_after(self) -> float | None:
        """Return when the certificate in use expires, in seconds since 1970; from any thread."""
        loaded = self._loaded
        return None if loaded is None else not_after(loaded[0])

    async def refresh(self) -> bool:
        """Read them again; new connections get what they hold now. Called in the loop that takes connections.

        Returns:
            Whether there was something new.

        Raises:
            ConfigurationError: what they hold now is of no use; the context keeps what it had.
        """
        found = await asyncio.to_thread(self._read_new)
        if found is None:
            return False
        # not in the thread: a connection must not come between the certificate and its key
        _load(self.context, found)
        self._loaded = found
        return True

    def _read_new(self) -> tuple[bytes, bytes] | None:
        found = self._source.read()
        if found is None or found == self._loaded:
            return None
        self._check(found)
        return found

    def _check(self, pair: tuple[bytes, bytes]) -> None:
        """Try a pair on a context of its own: one that fails leaves half of itself behind."""
        try:
            _load(_context(), pair)
        except (ssl.SSLError, ValueError) as error:
            reason = getattr(error, "reason", None) or str(error)
            raise ConfigurationError(
                f"webhook certificate {self._source} cannot be used ({reason}): "
                "give a PEM certificate and the unencrypted PEM key that belongs to it"
            ) from error


def not_after(pem: bytes) -> float | None:
    """Return when the first certificate of a PEM text expires, in seconds since 1970; None for what is not one.

    Without the package ``cryptography``, which an image whose webhook is given its certificate need not have.
    """
    try:
        begin = pem.index(b"-----BEGIN CERTIFICATE-----")
        end = pem.index(b"-----END CERTIFICATE-----", begin) + len(b"-----END CERTIFICATE-----")
        # RFC 5280: Certificate ::= SEQUENCE { tbsCertificate SEQUENCE { version, serialNumber, signature, issuer,
        # validity SEQUENCE { notBefore, notAfter } ...
        _, certificate, _ = _der(ssl.PEM_cert_to_DER_cert(pem[begin:end].decode("ascii")))
        _, fields, _ = _der(certificate)
        tag, _, after_version = _der(fields)
        rest = after_version if tag == _VERSION else fields
        for _ in range(3):
            _, _, rest = _der(rest)
        tag, validity, _ = _der(rest)
        _, _, rest = _der(validity)
        kind, text, _ = _der(rest)
        if tag != _SEQUENCE:
            return None
        moment = text.decode("ascii")
        if kind == _UTC_TIME:
            moment = f"{'19' if moment >= _FIRST_OF_1900S else '20'}{moment}"
        return datetime.strptime(moment, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()
    except (ValueError, IndexError):
        return None


def _der(data: bytes) -> tuple[int, bytes, bytes]:
    """Return tag and content of the first element of some DER, and what follows it."""
    tag, length, begin = data[0], data[1], 2
    if length & 0x80:
        begin += length & 0x7F
        length = int.from_bytes(data[2:begin], "big")
    return tag, data[begin : begin + length], data[begin + length :]


def _content(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"webhook {what} {path} cannot be read ({error.strerror or error}): give the path of a readable PEM file"
        ) from error


def _context() -> ssl.SSLContext:
    return ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)


def _load(context: ssl.SSLContext, pair: tuple[bytes, bytes]) -> None:
    # OpenSSL reads files only; one in memory, so that what was compared is what is loaded
    with os.fdopen(os.memfd_create("webhook-certificate"), "wb") as file:
        file.write(pair[0] + b"\n" + pair[1])
        file.flush()
        # an empty password: without one OpenSSL would ask for it on the terminal
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}", password="")
