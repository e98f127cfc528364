"""Certificate and key files: usable, or a ConfigurationError in one line."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

from dra_kit.admission.certificates import CertificateFiles, ServerCertificate
from dra_kit.errors import ConfigurationError
from tests.unit.admission.certificates import Pair, issue


def shake_hands(context: ssl.SSLContext) -> None:
    """A connection of a client that trusts everybody, without a socket."""
    client_context = ssl.create_default_context()
    client_context.check_hostname = False
    client_context.verify_mode = ssl.CERT_NONE
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client, server = client_context.wrap_bio(down, up), context.wrap_bio(up, down, server_side=True)
    for _ in range(3):
        for side in (client, server):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    assert client.version()


def encrypted_key() -> bytes:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, BestAvailableEncryption(b"secret"))


def key_of_another(pair: Pair) -> None:
    other = pair.key.parent / "other"
    other.mkdir()
    pair.key.write_bytes(issue(other).key.read_bytes())


def certificate_gone(pair: Pair) -> None:
    pair.cert.unlink()


def key_gone(pair: Pair) -> None:
    pair.key.unlink()


def directory_instead(pair: Pair) -> None:
    pair.cert.unlink()
    pair.cert.mkdir()


BREAKS: dict[str, tuple[Callable[[Pair], object], str]] = {
    "no certificate": (certificate_gone, r"tls\.crt cannot be read"),
    "no key": (key_gone, r"tls\.key cannot be read"),
    "a directory": (directory_instead, r"tls\.crt cannot be read"),
    "an empty certificate": (lambda pair: pair.cert.write_text(""), "cannot be used"),
    "no PEM": (lambda pair: pair.cert.write_bytes(b"\x00\xff certificate"), "cannot be used"),
    "a key of another": (key_of_another, "cannot be used"),
    "an encrypted key": (lambda pair: pair.key.write_bytes(encrypted_key()), "cannot be used"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_unusable_files_are_named_in_one_line(name: str, tmp_path: Path) -> None:
    pair = issue(tmp_path)
    spoil, text = BREAKS[name]
    spoil(pair)
    with pytest.raises(ConfigurationError, match=text) as refused:
        ServerCertificate(CertificateFiles(pair.cert, pair.key))
    assert "\n" not in str(refused.value)


async def test_unchanged_files_are_not_reloaded(tmp_path: Path) -> None:
    pair = issue(tmp_path)
    assert not await ServerCertificate(CertificateFiles(pair.cert, pair.key)).refresh()


async def test_replaced_files_are_loaded(tmp_path: Path) -> None:
    pair = issue(tmp_path)
    certificate = ServerCertificate(CertificateFiles(pair.cert, pair.key))
    issue(tmp_path)
    assert await certificate.refresh()
    assert not await certificate.refresh()


async def test_a_pair_that_does_not_match_is_rejected_until_the_second_file_is_replaced(tmp_path: Path) -> None:
    pair = issue(tmp_path)
    certificate = ServerCertificate(CertificateFiles(pair.cert, pair.key))
    old_key = pair.key.read_bytes()
    issue(tmp_path)
    new_key = pair.key.read_bytes()
    pair.key.write_bytes(old_key)
    with pytest.raises(ConfigurationError):
        await certificate.refresh()
    pair.key.write_bytes(new_key)
    assert await certificate.refresh()


async def test_connections_during_a_rotation_are_served(tmp_path: Path) -> None:
    pair = issue(tmp_path)
    certificate = ServerCertificate(CertificateFiles(pair.cert, pair.key))
    contents = []
    for _ in range(2):
        issue(tmp_path)
        contents.append((pair.cert.read_bytes(), pair.key.read_bytes()))

    async def rotate() -> None:
        for number in range(20):
            for path, content in zip((pair.cert, pair.key), contents[number % 2], strict=True):
                path.write_bytes(content)
            assert await certificate.refresh()

    rotating = asyncio.create_task(rotate())
    while not rotating.done():
        shake_hands(certificate.context)
        await asyncio.sleep(0)
    await rotating
