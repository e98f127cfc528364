"""An authority of the webhook's own, the server's certificate that it signs, and when both are renewed; no I/O.

The authority lives for ten years and signs certificates of ninety days. It is kept, so that a renewed certificate is
trusted at once; an authority that is renewed is trusted beside the one before, until that has ended.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from msgspec import Struct

AUTHORITY_LIFE: Final = dt.timedelta(days=3650)
SERVER_LIFE: Final = dt.timedelta(days=90)
CLOCKS: Final = dt.timedelta(hours=1)
"""How far the clocks of nodes and API server may be apart."""
_RENEWED_AT: Final = 2 / 3  # of a life


class Certificates(Struct, frozen=True):
    """What the Secret stores; PEM texts.

    Attributes:
        authorities: certificates of the authorities to be trusted, the one that signs last.
        authority_key: private key of the last authority.
        cert: the server's certificate.
        key: its private key.
    """

    authorities: bytes
    authority_key: bytes
    cert: bytes
    key: bytes


def renewed(found: Certificates | None, names: Sequence[str], now: dt.datetime) -> Certificates | None:
    """Return what the Secret is to store from now on; None where that is what was found.

    A new authority signs nothing in the step in which it is made: it has to be trusted first. Only where nothing
    usable was found both are made at once.

    Args:
        found: what is kept; None for nothing.
        names: DNS names of the server.
        now: with a time zone.
    """
    if found is None or not _is_usable(found, now):
        authority, authority_key = _new_authority(names[0], now)
        cert, key = _new_server(authority, authority_key, names, now)
        return Certificates(_pem(authority), _key_pem(authority_key), cert, key)
    authorities = x509.load_pem_x509_certificates(found.authorities)
    if _is_due(authorities[-1], now):
        authority, authority_key = _new_authority(names[0], now)
        trusted = [item for item in authorities if item.not_valid_after_utc > now]
        pems = b"".join(map(_pem, [*trusted, authority]))
        return Certificates(pems, _key_pem(authority_key), found.cert, found.key)
    server = x509.load_pem_x509_certificate(found.cert)
    if _is_due(server, now) or _names_of(server) != set(names) or not _is_signed_by(server, authorities[-1]):
        authority_key = _loaded_key(found.authority_key)
        cert, key = _new_server(authorities[-1], authority_key, names, now)
        return Certificates(found.authorities, found.authority_key, cert, key)
    return None


def _is_usable(found: Certificates, now: dt.datetime) -> bool:
    """Return whether it can be read, its keys belong to it, and nothing of it has ended."""
    try:
        authorities = x509.load_pem_x509_certificates(found.authorities)
        server = x509.load_pem_x509_certificate(found.cert)
        pairs = ((authorities[-1], _loaded_key(found.authority_key)), (server, _loaded_key(found.key)))
        if any(cert.public_key() != key.public_key() for cert, key in pairs):
            return False
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return False
    return server.not_valid_after_utc > now and any(
        item.not_valid_after_utc > now and _is_signed_by(server, item) for item in authorities
    )


def _is_due(cert: x509.Certificate, now: dt.datetime) -> bool:
    begin, end = cert.not_valid_before_utc, cert.not_valid_after_utc
    return now >= begin + (end - begin) * _RENEWED_AT


def _is_signed_by(cert: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        cert.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def _names_of(cert: x509.Certificate) -> set[str]:
    try:
        names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, x509.DuplicateExtension, ValueError):  # somebody else made it
        return set()
    return set(names.get_values_for_type(x509.DNSName))


def _new_authority(name: str, now: dt.datetime) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    # the date tells it from the one before, which is trusted, too
    title = f"{name[:40]} authority {now:%Y-%m-%d}"
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, title)])
    builder = _builder(subject, subject, key, now, AUTHORITY_LIFE)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs=True), critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return builder.sign(key, hashes.SHA256()), key


def _new_server(
    authority: x509.Certificate, authority_key: ec.EllipticCurvePrivateKey, names: Sequence[str], now: dt.datetime
) -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    builder = _builder(subject, authority.subject, key, now, SERVER_LIFE)
    alternatives = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
    builder = builder.add_extension(alternatives, critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs=False), critical=True)
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    builder = builder.add_extension(signer, critical=False)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    return _pem(builder.sign(authority_key, hashes.SHA256())), _key_pem(key)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now: dt.datetime,
    life: dt.timedelta,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCKS)
        .not_valid_after(now + life)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _loaded_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = load_pem_private_key(pem, None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise TypeError("a key of another kind")
    return key


def _pem(cert: x509.Certificate) -> bytes:
    return cert.public_bytes(Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
