"""The webhook's own authority and certificate: when each is renewed, and that clients can trust them at all times."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509 import verification
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dra_kit.admission.certificate_authority import (
    AUTHORITY_LIFE,
    SERVER_LIFE,
    CertificateBundle,
    is_trusted,
    preferred_certificates,
    renew_authority,
    renew_server_certificate,
)

NAMES = ["pizza-webhook.kitchen.svc", "pizza-webhook.kitchen.svc.cluster.local"]
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
DAY = dt.timedelta(days=1)


def renewed(
    before: CertificateBundle | None, now: dt.datetime = START, names: Sequence[str] = NAMES
) -> CertificateBundle:
    """The content with another server certificate, which is due."""
    after = renew_server_certificate(before, names, now)
    assert after is not None
    return after


def made() -> CertificateBundle:
    """New ones."""
    return renewed(None)


def trusted(certificates: CertificateBundle) -> CertificateBundle:
    """The same once the API server trusts it."""
    return replace(certificates, trusted=certificates.authorities)


def authorities(certificates: CertificateBundle) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(certificates.authorities)


def is_accepted(server: bytes, bundle: bytes, now: dt.datetime) -> bool:
    """Whether a client that trusts these authorities accepts the server's certificate now."""
    roots = [item for item in x509.load_pem_x509_certificates(bundle) if item.not_valid_after_utc > now]
    verifier = verification.PolicyBuilder().store(verification.Store(roots)).time(now)
    try:
        verifier.build_server_verifier(x509.DNSName(NAMES[0])).verify(x509.load_pem_x509_certificate(server), [])
    except verification.VerificationError:
        return False
    return True


def test_a_new_certificate_has_the_names_and_is_accepted() -> None:
    certificates = made()
    for name in NAMES:
        roots = verification.Store(authorities(certificates))
        verifier = verification.PolicyBuilder().store(roots).time(START).build_server_verifier(x509.DNSName(name))
        verifier.verify(x509.load_pem_x509_certificate(certificates.cert), [])


def test_a_new_authority_is_not_trusted_yet() -> None:
    assert not is_trusted(made())
    assert is_trusted(trusted(made()))


def test_valid_certificates_are_not_renewed() -> None:
    assert renew_server_certificate(made(), NAMES, START + 59 * DAY) is None


def test_the_server_certificate_is_renewed_in_time_by_the_same_authority() -> None:
    before = trusted(made())
    after = renewed(before, START + 61 * DAY)
    assert (after.authorities, after.authority_key) == (before.authorities, before.authority_key)
    assert is_trusted(after)
    assert after.cert != before.cert
    assert is_accepted(after.cert, before.authorities, START + 61 * DAY)


def test_another_service_name_renews_the_server_certificate() -> None:
    before = made()
    after = renewed(before, names=["other.kitchen.svc"])
    assert after.authorities == before.authorities
    names = x509.load_pem_x509_certificate(after.cert).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert names.value.get_values_for_type(x509.DNSName) == ["other.kitchen.svc"]


def test_an_authority_is_not_renewed_in_the_first_half_of_its_life() -> None:
    assert renew_authority(made(), NAMES, START + AUTHORITY_LIFE / 2 - DAY) is None


def test_a_renewed_authority_is_trusted_next_to_the_former_one() -> None:
    now = START + AUTHORITY_LIFE / 2 + DAY
    before = renewed(trusted(made()), now)
    after = renew_authority(before, NAMES, now)
    assert after is not None
    assert (authorities(after)[:-1], after.cert, after.key) == (authorities(before), before.cert, before.key)
    assert is_accepted(after.cert, after.authorities, now)
    then = renewed(after, now)
    assert (then.authorities, then.authority_key) == (after.authorities, after.authority_key)
    assert not is_accepted(then.cert, before.authorities, now)
    assert is_accepted(then.cert, after.authorities, now)


def test_a_server_certificate_is_valid_no_longer_than_its_authority() -> None:
    before = made()
    [authority] = authorities(before)
    after = renewed(before, authority.not_valid_after_utc - 10 * DAY)
    assert x509.load_pem_x509_certificate(after.cert).not_valid_after_utc == authority.not_valid_after_utc
    # one that is valid as long as possible is not made again at each look
    assert renew_server_certificate(after, NAMES, authority.not_valid_after_utc - DAY) is None


def test_an_authority_that_has_expired_is_replaced() -> None:
    now = START + AUTHORITY_LIFE + DAY
    after = renewed(trusted(made()), now)
    assert not is_trusted(after)
    assert is_accepted(after.cert, after.authorities, now)


CORRUPT_CONTENTS = [b"", b"rubbish", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]


@pytest.mark.parametrize("field", ["cert", "key"])
@pytest.mark.parametrize("content", CORRUPT_CONTENTS)
def test_a_corrupt_server_certificate_is_issued_again_by_the_same_authority(field: str, content: bytes) -> None:
    before = made()
    after = renewed(replace(before, **{field: content}))
    assert after.authorities == before.authorities
    assert is_accepted(after.cert, before.authorities, START)


@pytest.mark.parametrize("field", ["authorities", "authority_key"])
@pytest.mark.parametrize("content", CORRUPT_CONTENTS)
def test_a_corrupt_authority_is_replaced(field: str, content: bytes) -> None:
    after = renewed(replace(made(), **{field: content}))
    assert is_accepted(after.cert, after.authorities, START)


@pytest.mark.parametrize("field", ["authority_key", "key"])
def test_a_key_of_another_certificate_is_not_used(field: str) -> None:
    other = made()
    after = renewed(replace(made(), **{field: getattr(other, field)}))
    assert is_accepted(after.cert, after.authorities, START)


def test_a_certificate_without_names_is_issued_again() -> None:
    """A certificate in the Secret from another source: the API server rejects certificates without names."""
    before = made()
    [authority], key = authorities(before), load_pem_private_key(before.authority_key, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    own = load_pem_private_key(before.key, None)
    assert isinstance(own, ec.EllipticCurvePrivateKey)
    builder = x509.CertificateBuilder().subject_name(authority.subject).issuer_name(authority.subject)
    builder = builder.public_key(own.public_key()).serial_number(x509.random_serial_number())
    nameless = builder.not_valid_before(START - DAY).not_valid_after(START + 60 * DAY).sign(key, hashes.SHA256())
    after = renewed(replace(before, cert=nameless.public_bytes(Encoding.PEM)))
    assert after.authorities == before.authorities
    assert is_accepted(after.cert, before.authorities, START)


def test_a_trusted_copy_is_preferred_to_an_untrusted_stored_authority() -> None:
    stored, held = made(), trusted(made())
    assert preferred_certificates(stored, held, START) is held
    assert preferred_certificates(trusted(stored), held, START) == trusted(stored)
    assert preferred_certificates(stored, made(), START) is stored


def test_an_authority_that_cannot_sign_is_ignored() -> None:
    held = trusted(made())
    assert preferred_certificates(replace(trusted(made()), authority_key=b""), held, START) is held
    assert preferred_certificates(None, held, START + AUTHORITY_LIFE + DAY) is None


@settings(max_examples=25, deadline=None)
@given(
    pauses=st.lists(st.integers(1, 400), min_size=1, max_size=12),
    upgrades=st.sets(st.integers(0, 11)),
    begin=st.sampled_from([dt.timedelta(0), AUTHORITY_LIFE / 2 - 300 * DAY]),
)
def test_the_api_server_accepts_the_served_certificate_at_every_step(
    pauses: list[int], upgrades: set[int], begin: dt.timedelta
) -> None:
    """Looks of the webhook come less than a third of a certificate's life apart; upgrades at any of them."""
    now, stored = START, trusted(made())
    bundle = stored.authorities
    now += begin
    stored = renew_server_certificate(stored, NAMES, now) or stored
    for step, pause in enumerate(pauses):
        now += min(pause * DAY, SERVER_LIFE / 4)
        if step in upgrades:
            upgraded = renew_authority(stored, NAMES, now) or stored
            bundle = upgraded.authorities
            assert is_accepted(stored.cert, bundle, now)
            stored = trusted(upgraded)
        stored = renew_server_certificate(stored, NAMES, now) or stored
        assert is_accepted(stored.cert, bundle, now)
        assert is_trusted(stored)
