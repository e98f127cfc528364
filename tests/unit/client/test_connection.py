from __future__ import annotations

import ssl

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.client.credentials import Connection, proxy_from_environment

PROXY = "http://proxy.example:3128"


@pytest.mark.parametrize(
    ("server", "no_proxy", "expected"),
    [
        ("https://api.example:6443", "", PROXY),
        ("https://api.example:6443", "*", None),
        ("https://api.example:6443", "api.example", None),
        ("https://api.example:6443", "other, API.EXAMPLE", None),
        ("https://api.example:6443", "example", None),
        ("https://api.example:6443", ".example", None),
        ("https://api.example:6443", "xample", PROXY),
        ("https://api.example:6443", "api.example:6443", None),
        ("https://api.example:6443", "api.example:443", PROXY),
        ("https://api.example", "api.example:443", None),
        ("https://10.96.0.1:443", "10.96.0.0/12", None),
        ("https://10.96.0.1:443", "10.0.0.0/16", PROXY),
        ("https://10.96.0.1:443", "10.96.0.1:443", None),
        ("https://[fd00::1]:443", "fd00::/8", None),
        ("https://[fd00::1]:443", "[fd00::1]:443", None),
        ("https://127.0.0.1:6443", "", None),
        ("https://localhost:6443", "", None),
    ],
)
def test_no_proxy(server: str, no_proxy: str, expected: str | None) -> None:
    assert proxy_from_environment(server, {"HTTPS_PROXY": PROXY, "NO_PROXY": no_proxy}) == expected


def test_proxy_is_chosen_by_scheme() -> None:
    environment = {"HTTP_PROXY": "http://plain.example", "https_proxy": "secure.example:1"}
    assert proxy_from_environment("http://api.example", environment) == "http://plain.example"
    assert proxy_from_environment("https://api.example", environment) == "http://secure.example:1"
    assert proxy_from_environment("https://api.example", {}) is None


@given(st.ip_addresses(v=4), st.integers(0, 32))
def test_an_address_is_exempt_by_every_block_that_holds_it(address: object, prefix: int) -> None:
    environment = {"HTTPS_PROXY": PROXY, "NO_PROXY": f"{address}/{prefix}"}
    assert proxy_from_environment(f"https://{address}:6443", environment) is None


def test_a_plain_server_needs_no_ssl_context() -> None:
    assert Connection("http://127.0.0.1").ssl_context() is None


def test_a_unix_socket_needs_no_ssl_context_and_no_authority() -> None:
    assert Connection("https://127.0.0.1:6443", socket="/run/api.sock").ssl_context() is None


def test_a_server_is_verified_against_its_ca_alone() -> None:
    authority = trustme.CA()
    context = Connection("https://x", ca=authority.cert_pem.bytes()).ssl_context()
    assert context is not None
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert not context.verify_flags & ssl.VERIFY_X509_STRICT
    assert len(context.get_ca_certs()) == 1


def test_an_insecure_server_is_not_verified() -> None:
    context = Connection("https://x", insecure=True).ssl_context()
    assert context is not None
    assert not context.check_hostname
    assert context.verify_mode is ssl.CERT_NONE


def test_secrets_are_not_logged() -> None:
    connection = Connection("https://x", "Bearer secret", private_key=b"secret")
    assert "secret" not in repr(connection)


@pytest.mark.parametrize("change", ["ca", "certificate", "private_key"])
def test_changed_certificates_need_another_ssl_context(change: str) -> None:
    before = Connection("https://x", ca=b"1", certificate=b"1", private_key=b"1")
    after = Connection("https://x", **{"ca": b"1", "certificate": b"1", "private_key": b"1", change: b"2"})  # type: ignore[arg-type]
    assert not before.same_tls(after)
    assert before.same_tls(Connection("https://x", "Bearer new", ca=b"1", certificate=b"1", private_key=b"1"))
