"""Certificate and key files: usable, or a ConfigurationError in one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

from dra_kit.errors import ConfigurationError
from dra_kit.webhook.certificate import ServerCertificate
from tests.unit.webhook.certificates import Pair, issue


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
def test_files_that_cannot_be_used_are_named_in_one_line(name: str, tmp_path: Path) -> None:
    pair = issue(tmp_path)
    spoil, text = BREAKS[name]
    spoil(pair)
    with pytest.raises(ConfigurationError, match=text) as refused:
        ServerCertificate(pair.cert, pair.key)
    assert "\n" not in str(refused.value)


def test_unchanged_files_are_nothing_new(tmp_path: Path) -> None:
    pair = issue(tmp_path)
    assert not ServerCertificate(pair.cert, pair.key).refresh()


def test_replaced_files_are_taken_over(tmp_path: Path) -> None:
    pair = issue(tmp_path)
    certificate = ServerCertificate(pair.cert, pair.key)
    issue(tmp_path)
    assert certificate.refresh()
    assert not certificate.refresh()


def test_half_a_rotation_is_refused_and_its_other_half_completes_it(tmp_path: Path) -> None:
    pair = issue(tmp_path)
    certificate = ServerCertificate(pair.cert, pair.key)
    old_key = pair.key.read_bytes()
    issue(tmp_path)
    new_key = pair.key.read_bytes()
    pair.key.write_bytes(old_key)
    with pytest.raises(ConfigurationError):
        certificate.refresh()
    pair.key.write_bytes(new_key)
    assert certificate.refresh()
