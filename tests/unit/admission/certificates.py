"""Certificates for servers on 127.0.0.1, as files."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True)
class Pair:
    """The files of a server, and the context with which a client trusts it."""

    cert: Path
    key: Path
    trust: ssl.SSLContext
    ca: bytes


def issue(directory: Path) -> Pair:
    """Writes a certificate of a new authority; in the same directory it replaces the last one, as a rotation does."""
    authority = trustme.CA()
    leaf = authority.issue_cert("127.0.0.1")
    cert, key = directory / "tls.crt", directory / "tls.key"
    cert.write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
    key.write_bytes(leaf.private_key_pem.bytes())
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    return Pair(cert, key, trust, authority.cert_pem.bytes())
