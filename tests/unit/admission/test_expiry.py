"""When a certificate expires, read without the package that makes certificates."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_kit.admission.certificates import CertificateFiles, ServerCertificate, not_after
from tests.unit.admission.certificates import issue

KEY = ec.generate_private_key(ec.SECP256R1())
MOMENTS = st.integers(-18 * 365, 230 * 365).map(lambda days: dt.datetime.fromtimestamp(days * 86_400 + 4_711, dt.UTC))


def issued(name: str, end: dt.datetime, serial: int) -> bytes:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(subject).public_key(KEY.public_key())
    builder = builder.serial_number(serial).not_valid_before(end - dt.timedelta(days=1)).not_valid_after(end)
    return builder.sign(KEY, hashes.SHA256()).public_bytes(Encoding.PEM)


@settings(max_examples=100, deadline=None)
@given(name=st.text("abcdefgh.", min_size=1, max_size=64), end=MOMENTS, serial=st.integers(1, 2**159 - 1))
def test_expiry_is_the_not_after_of_the_certificate(name: str, end: dt.datetime, serial: int) -> None:
    # 2050 is where the encoding of a time changes
    assert not_after(issued(name, end, serial)) == end.timestamp()


def test_expiry_of_a_chain_is_that_of_the_first_certificate() -> None:
    first, second = dt.datetime(2030, 1, 1, tzinfo=dt.UTC), dt.datetime(2040, 1, 1, tzinfo=dt.UTC)
    assert not_after(issued("a", first, 1) + issued("b", second, 2)) == first.timestamp()


@given(st.binary(max_size=300))
def test_content_without_a_certificate_has_no_expiry(content: bytes) -> None:
    begin, end = b"-----BEGIN CERTIFICATE-----\n", b"\n-----END CERTIFICATE-----\n"
    assert not_after(content) is None
    assert not_after(begin + content + end) is None


def test_a_server_knows_the_expiry_of_its_certificate_files(tmp_path: Path) -> None:
    pair = issue(tmp_path)
    certificate = ServerCertificate(CertificateFiles(pair.cert, pair.key))
    [leaf, *_] = x509.load_pem_x509_certificates(pair.cert.read_bytes())
    assert certificate.not_after() == leaf.not_valid_after_utc.timestamp()
