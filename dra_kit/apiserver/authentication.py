"""Tokens of service accounts, as a TokenRequest gives them.

Source: Kubernetes 1.37 ``pkg/serviceaccount/claims.go`` (KEP-4193 for nodes in tokens of pods). They are JSON Web
Tokens, signed with a key that nobody but the server knows: HS256, where Kubernetes has public keys that others can
check.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Final

from dra_kit.apiserver.authorization.users import User, account_groups
from dra_kit.kubernetes.values.json import Object

AUDIENCE: Final = "https://kubernetes.default.svc"
DEFAULT_SECONDS: Final = 3600
_HEADER: Final = {"alg": "HS256", "typ": "JWT"}
_EXTRA: Final = "authentication.kubernetes.io"


class Tokens:
    """Makes tokens, and tells whose they are.

    Args:
        lookup: an object by resource and key: a token dies with its service account, and with the pod it is bound to.
    """

    def __init__(self, lookup: Callable[[str, str], Object | None]) -> None:
        self._lookup = lookup
        self._key = secrets.token_bytes(32)

    def issue(
        self,
        account: Object,
        *,
        pod: Object | None = None,
        node: Object | None = None,
        seconds: float = DEFAULT_SECONDS,
        audiences: Sequence[str] = (),
    ) -> tuple[str, float]:
        """Return a token, and when it expires (seconds since 1970).

        Args:
            account: the ServiceAccount.
            pod: it is bound to that pod, and names its node.
            node: it is bound to that node.
            seconds: how long it is valid.
            audiences: for whom; the API server where none is given.
        """
        now = int(time.time())
        expires = now + int(seconds)
        metadata = account["metadata"]
        bound: Object = {"namespace": metadata["namespace"], "serviceaccount": _reference(account)}
        if pod is not None:
            bound["pod"] = _reference(pod)
            if name := (pod.get("spec") or {}).get("nodeName"):
                found = self._lookup("nodes", name)
                bound["node"] = _reference(found) if found else {"name": name}
        elif node is not None:
            bound["node"] = _reference(node)
        claims = {
            "aud": list(audiences) or [AUDIENCE], "exp": expires, "iat": now, "iss": AUDIENCE,
            "jti": str(uuid.uuid4()), "kubernetes.io": bound, "nbf": now,
            "sub": f"system:serviceaccount:{metadata['namespace']}:{metadata['name']}",
        }  # fmt: skip
        signed = f"{_encoded(_HEADER)}.{_encoded(claims)}"
        return f"{signed}.{self._signature(signed)}", expires

    def user(self, token: str, audiences: Sequence[str] = (AUDIENCE,)) -> User | None:
        """Return the user of a token; None if it is none of this server's, or no longer valid."""
        signed, _, signature = token.rpartition(".")
        if not hmac.compare_digest(signature.encode(errors="surrogateescape"), self._signature(signed).encode()):
            return None
        claims = json.loads(_decoded(signed.partition(".")[2]))
        bound = claims["kubernetes.io"]
        account, pod, node = bound["serviceaccount"], bound.get("pod"), bound.get("node")
        namespace = bound["namespace"]
        valid = (
            claims["exp"] > time.time()
            and bool(set(claims["aud"]) & set(audiences))
            and self._is("serviceaccounts", f"{namespace}/{account['name']}", account["uid"])
            and (pod is None or self._is("pods", f"{namespace}/{pod['name']}", pod["uid"]))
            and (pod is not None or node is None or self._is("nodes", node["name"], node["uid"]))
        )
        if not valid:
            return None
        extra = {f"{_EXTRA}/credential-id": (f"JTI={claims['jti']}",)}
        for what, reference in (("node", node), ("pod", pod)):
            if reference:
                extra |= {f"{_EXTRA}/{what}-{field}": (value,) for field, value in reference.items()}
        groups = (*account_groups(namespace), "system:authenticated")
        return User(claims["sub"], groups, account["uid"], extra)

    def _is(self, resource: str, key: str, uid: str) -> bool:
        found = self._lookup(resource, key)
        return found is not None and bool(found["metadata"]["uid"] == uid)

    def _signature(self, signed: str) -> str:
        digest = hmac.new(self._key, signed.encode(errors="surrogateescape"), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def _reference(obj: Object) -> dict[str, str]:
    return {"name": obj["metadata"]["name"], "uid": obj["metadata"]["uid"]}


def _encoded(value: object) -> str:
    text = json.dumps(value, separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(text).decode().rstrip("=")


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
