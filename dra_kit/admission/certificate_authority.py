"""The webhook's own certificate authority, the server certificate that it signs, and when each is renewed; no I/O."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from msgspec import Struct
from msgspec.structs import replace

AUTHORITY_LIFE: Final = dt.timedelta(days=20 * 365)
SERVER_LIFE: Final = dt.timedelta(days=90)
CLOCKS: Final = dt.timedelta(hours=1)
"""How far the clocks of nodes and API server may differ."""
_AUTHORITY_RENEWED_AT: Final = 1 / 2  # of its lifetime; the other half covers long periods without an upgrade
_SERVER_RENEWED_AT: Final = 2 / 3


class CertificateBundle(Struct, frozen=True):
    """The content of the Secret as PEM texts. The last of ``authorities`` signs; the API server trusts ``trusted``."""

    authorities: bytes
    authority_key: bytes
    cert: bytes
    key: bytes
    trusted: bytes = b""


def is_sound(found: CertificateBundle, now: dt.datetime) -> bool:
    """Return whether the authority can sign: it is readable, its key belongs to it, and it has not expired."""
    try:
        authority = x509.load_pem_x509_certificates(found.authorities)[-1]
        fits = authority.public_key() == _loaded_key(found.authority_key).public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return False
    return fits and authority.not_valid_after_utc > now


def is_trusted(found: CertificateBundle) -> bool:
    """Return whether the authority that signs is among those that the API server was made to trust."""
    try:
        authority = x509.load_pem_x509_certificates(found.authorities)[-1]
        return authority in x509.load_pem_x509_certificates(found.trusted)
    except ValueError:
        return False


def preferred_certificates(
    stored: CertificateBundle | None, held: CertificateBundle | None, now: dt.datetime
) -> CertificateBundle | None:
    """Return which of two contents to use, stored or held by this process; None if neither can sign.

    Content that the API server trusts is preferred; after that, stored content is preferred.
    """
    sound = [each for each in (stored, held) if each is not None and is_sound(each, now)]
    return next((each for each in sound if is_trusted(each)), next(iter(sound), None))


def renew_server_certificate(
    found: CertificateBundle | None, names: Sequence[str], now: dt.datetime
) -> CertificateBundle | None:
    """Return new content with a valid server certificate; None if no renewal is due.

    The authority is retained. A new one is created only if no authority can sign; no client trusts the new one yet.
    """
    if found is None or not is_sound(found, now):
        authority, authority_key = _new_authority(names[0], now)
        cert, key = _new_server(authority, authority_key, names, now)
        return CertificateBundle(_pem(authority), _key_pem(authority_key), cert, key)
    authority = x509.load_pem_x509_certificates(found.authorities)[-1]
    if _is_good(found, authority, names, now):
        return None
    cert, key = _new_server(authority, _loaded_key(found.authority_key), names, now)
    return replace(found, cert=cert, key=key)


def renew_authority(found: CertificateBundle, names: Sequence[str], now: dt.datetime) -> CertificateBundle | None:
    """Return new content with a new authority in addition to the former ones; None if no renewal is due.

    The server certificate is retained: the former authority, which signed it, remains trusted until it expires. The
    result may be stored only when the API server trusts all its authorities.
    """
    authorities = x509.load_pem_x509_certificates(found.authorities)
    if not _is_due(authorities[-1], now, _AUTHORITY_RENEWED_AT):
        return None
    authority, authority_key = _new_authority(names[0], now)
    trusted = [item for item in authorities if item.not_valid_after_utc > now]
    return replace(found, authorities=b"".join(map(_pem, [*trusted, authority])), authority_key=_key_pem(authority_key))


def _is_good(found: CertificateBundle, authority: x509.Certificate, names: Sequence[str], now: dt.datetime) -> bool:
    """Return whether the server certificate need not be renewed."""
    try:
        server = x509.load_pem_x509_certificate(found.cert)
        if server.public_key() != _loaded_key(found.key).public_key():
            return False
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return False
    if not _is_signed_by(server, authority) or _names_of(server) != set(names) or server.not_valid_after_utc <= now:
        return False
    # at the end of the authority's life a new one would be valid no longer
    return not _is_due(server, now, _SERVER_RENEWED_AT) or server.not_valid_after_utc >= authority.not_valid_after_utc


def _is_due(cert: x509.Certificate, now: dt.datetime, share: float) -> bool:
    begin, end = cert.not_valid_before_utc, cert.not_valid_after_utc
    return now >= begin + (end - begin) * share


def _is_signed_by(cert: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        cert.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def _names_of(cert: x509.Certificate) -> set[str]:
    try:
        names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, x509.DuplicateExtension, ValueError):  # the webhook did not make it
        return set()
    return set(names.get_values_for_type(x509.DNSName))


def _new_authority(name: str, now: dt.datetime) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    # the date distinguishes it from the one before, which is trusted, too
    title = f"{name[:40]} authority {now:%Y-%m-%d}"
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, title)])
    builder = _builder(subject, subject, key, now, now + AUTHORITY_LIFE)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs=True), critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return builder.sign(key, hashes.SHA256()), key


def _new_server(
    authority: x509.Certificate, authority_key: ec.EllipticCurvePrivateKey, names: Sequence[str], now: dt.datetime
) -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    end = min(now + SERVER_LIFE, authority.not_valid_after_utc)
    builder = _builder(subject, authority.subject, key, now, end)
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
    end: dt.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCKS)
        .not_valid_after(end)
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
        raise TypeError("not an elliptic curve key")
    return key


def _pem(cert: x509.Certificate) -> bytes:
    return cert.public_bytes(Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
