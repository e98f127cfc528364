"""The webhook's own authority and certificate: what is renewed when, and that somebody who trusts it always can."""

from __future__ import annotations

import datetime as dt

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509 import verification
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dra_kit.webhook.certificates.issuing import AUTHORITY_LIFE, SERVER_LIFE, Certificates, renewed

NAMES = ["pizza-webhook.kitchen.svc", "pizza-webhook.kitchen.svc.cluster.local"]
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
DAY = dt.timedelta(days=1)


def made(now: dt.datetime = START) -> Certificates:
    """New ones."""
    certificates = renewed(None, NAMES, now)
    assert certificates is not None
    return certificates


def authorities(certificates: Certificates) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(certificates.authorities)


def is_trusted(server: bytes, by: Certificates, now: dt.datetime) -> bool:
    """Whether who trusts these authorities takes the server's certificate now."""
    roots = [item for item in authorities(by) if item.not_valid_after_utc > now]
    verifier = verification.PolicyBuilder().store(verification.Store(roots)).time(now)
    try:
        verifier.build_server_verifier(x509.DNSName(NAMES[0])).verify(x509.load_pem_x509_certificate(server), [])
    except verification.VerificationError:
        return False
    return True


def test_a_new_one_is_for_the_names_and_trusted() -> None:
    certificates = made()
    for name in NAMES:
        roots = verification.Store(authorities(certificates))
        verifier = verification.PolicyBuilder().store(roots).time(START).build_server_verifier(x509.DNSName(name))
        verifier.verify(x509.load_pem_x509_certificate(certificates.cert), [])


def test_what_is_good_is_left_alone() -> None:
    assert renewed(made(), NAMES, START + 59 * DAY) is None


def test_the_server_is_renewed_by_the_same_authority_in_time() -> None:
    before = made()
    after = renewed(before, NAMES, START + 61 * DAY)
    assert after is not None
    assert (after.authorities, after.authority_key) == (before.authorities, before.authority_key)
    assert after.cert != before.cert
    assert is_trusted(after.cert, before, START + 61 * DAY)


def test_another_name_of_the_service_is_another_certificate() -> None:
    after = renewed(made(), ["other.kitchen.svc"], START)
    assert after is not None
    names = x509.load_pem_x509_certificate(after.cert).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert names.value.get_values_for_type(x509.DNSName) == ["other.kitchen.svc"]


def test_an_authority_that_is_renewed_signs_only_once_it_is_trusted() -> None:
    now, kept = START, made()
    while True:
        now += SERVER_LIFE / 4
        after = renewed(kept, NAMES, now)
        if after is not None and after.authorities != kept.authorities:
            break
        kept = after or kept
    assert now - START > AUTHORITY_LIFE / 2
    assert (len(authorities(after)), after.cert) == (2, kept.cert)
    then = renewed(after, NAMES, now)
    assert then is not None
    assert (then.authorities, then.cert != after.cert) == (after.authorities, True)
    assert is_trusted(then.cert, after, now)


@pytest.mark.parametrize("field", ["authorities", "authority_key", "cert", "key"])
@pytest.mark.parametrize("damage", [b"", b"rubbish", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_what_is_damaged_is_made_anew(field: str, damage: bytes) -> None:
    after = renewed(replace(made(), **{field: damage}), NAMES, START)
    assert after is not None
    assert is_trusted(after.cert, after, START)


@pytest.mark.parametrize("field", ["authority_key", "key"])
def test_a_key_of_another_is_made_anew(field: str) -> None:
    other = made()
    after = renewed(replace(made(), **{field: getattr(other, field)}), NAMES, START)
    assert after is not None
    assert is_trusted(after.cert, after, START)


def test_one_without_names_is_made_anew() -> None:
    """As somebody made it who put it into the Secret: the API server takes none without names."""
    before = made()
    [authority], key = authorities(before), load_pem_private_key(before.authority_key, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    own = load_pem_private_key(before.key, None)
    assert isinstance(own, ec.EllipticCurvePrivateKey)
    builder = x509.CertificateBuilder().subject_name(authority.subject).issuer_name(authority.subject)
    builder = builder.public_key(own.public_key()).serial_number(x509.random_serial_number())
    nameless = builder.not_valid_before(START - DAY).not_valid_after(START + 60 * DAY).sign(key, hashes.SHA256())
    after = renewed(replace(before, cert=nameless.public_bytes(Encoding.PEM)), NAMES, START)
    assert after is not None
    assert after.authorities == before.authorities
    assert is_trusted(after.cert, before, START)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 400), min_size=1, max_size=12))
def test_whoever_trusted_the_last_step_trusts_the_next(pauses: list[int]) -> None:
    """With looks less than a third of a certificate's life apart, no step asks for a trust that nobody has yet."""
    now, kept = START, made()
    for pause in pauses:
        now += min(pause * DAY, SERVER_LIFE / 4)
        after = renewed(kept, NAMES, now)
        if after is not None:
            assert is_trusted(after.cert, kept, now)
            kept = after
        assert is_trusted(kept.cert, kept, now)
