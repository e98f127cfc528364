"""Authentication: users, bearer tokens, and the check of each request before it is read.

Tokens are JSON Web Tokens, signed by HS256 with a key that only the server knows. Kubernetes signs with a private key
instead, so that others can verify tokens with the public key.

A kube-apiserver usually runs in a separate network. This one listens on the loopback interface, where every user of the
machine and every page in a browser can send requests. A client that may create a Pod runs commands as the owner.

Source: Kubernetes 1.37 ``pkg/serviceaccount/claims.go`` (KEP-4193 for nodes in tokens of pods).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import secrets
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Self

from aiohttp import web
from msgspec import Struct, field
from msgspec.structs import replace

from dra_kit.apiserver.requests import unsupported_media_type
from dra_kit.apiserver.status_errors import StatusError, forbidden_path, unauthorized
from dra_kit.kubernetes.values.json import Object

AUDIENCE: Final = "https://kubernetes.default.svc"
DEFAULT_SECONDS: Final = 3600
EXTENDED_SECONDS: Final = 3607
"""A token that is requested for so long is valid for a year: the mark of the volume that admission adds to pods.

Programs that read the token once shall not fail after an hour (Kubernetes 1.37 ``pkg/serviceaccount``,
``WarnOnlyBoundTokenExpirationSeconds``; ``--service-account-extend-token-expiration`` is on by default).
"""
_YEAR_SECONDS: Final = 365 * 24 * 3600
_HEADER: Final = {"alg": "HS256", "typ": "JWT"}
_EXTRA: Final = "authentication.kubernetes.io"


class TokenIssuer:
    """Issues tokens and returns the user of a token.

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

        It may be bound to a pod, whose node it names, or to a node. Without audiences it is for the API server.
        """
        now = int(time.time())
        expires = now + int(seconds)
        extended = pod is not None and seconds == EXTENDED_SECONDS and AUDIENCE in (audiences or [AUDIENCE])
        end = now + _YEAR_SECONDS if extended else expires
        metadata = account["metadata"]
        bound: Object = {"namespace": metadata["namespace"], "serviceaccount": _reference(account)}
        if pod is not None:
            bound["pod"] = _reference(pod)
            if name := (pod.get("spec") or {}).get("nodeName"):
                found = self._lookup("nodes", name)
                bound["node"] = _reference(found) if found else {"name": name}
        elif node is not None:
            bound["node"] = _reference(node)
        if extended:
            bound["warnafter"] = expires
        claims = {
            "aud": list(audiences) or [AUDIENCE], "exp": end, "iat": now, "iss": AUDIENCE,
            "jti": str(uuid.uuid4()), "kubernetes.io": bound, "nbf": now,
            "sub": f"system:serviceaccount:{metadata['namespace']}:{metadata['name']}",
        }  # fmt: skip
        signed = f"{_encoded(_HEADER)}.{_encoded(claims)}"
        return f"{signed}.{self._signature(signed)}", expires

    def user(self, token: str, audiences: Sequence[str] = (AUDIENCE,)) -> User | None:
        """Return the user of a token; None if this server did not issue it, or it is no longer valid."""
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
        return replace(User.service_account(namespace, account["name"]), uid=account["uid"], extra=extra)

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


NAMES: Final = ("127.0.0.1", "localhost", "::1")
"""What the server may be called: in its certificate, and in the header ``Host`` of a request."""
# the paths that kube-apiserver serves to anonymous users where its configuration leaves them only these
_OPEN: Final = re.compile(r"/(livez|readyz|healthz)(/.*)?")
_SCALE: Final = re.compile(r"/apis/apps/v1/namespaces/[^/]+/[^/]+/[^/]+/scale")


class Authenticator:
    """Accepts requests with the server's token or a service account's, if they are addressed to this server.

    - ``Host`` must be one of :data:`NAMES` with the port, no name that an attacker's DNS server points here; over a
      unix socket, to which no such name leads, it may be any.
    - A request with an ``Origin`` is that of a web page, and refused whatever else it brings.
    - Without the token only ``/livez``, ``/readyz`` and ``/healthz`` are served; with a wrong one not even those.
    - A body must say what it is. kube-apiserver takes one without a ``Content-Type`` for JSON (1.37.1 does so), and it
      is the only form of JSON that a web page may send to a foreign server without asking it before. A PUT of a scale
      may come without: ``kubectl scale`` sends it so (client-go 0.37 ``scale/client.go``), and no page may send a PUT
      without asking.

    Attributes:
        token: the bearer token, a new random one for each instance.
        refused: how many requests were turned away, by reason: ``host``, ``origin``, ``token``, ``content type``.
    """

    def __init__(self) -> None:
        self.token: Final = secrets.token_urlsafe(32)
        self.refused: Final[Counter[str]] = Counter()

    def check(self, request: web.BaseRequest, tokens: TokenIssuer) -> User:
        """Check a request and return its user.

        Raises:
            StatusError: 401, 403 or 415; it is not let in.
        """
        if not _means_this_server(request):
            raise self._refusal("host", forbidden_path("this server has another name: use the one in its kubeconfig"))
        if "Origin" in request.headers:
            raise self._refusal("origin", forbidden_path("web pages are not served here"))
        given = request.headers.get("Authorization")
        user = self._user(given, tokens) if given is not None else None
        if given is None and request.method in {"GET", "HEAD"} and _OPEN.fullmatch(request.rel_url.raw_path):
            user = ANONYMOUS
        if user is None:
            raise self._refusal("token", unauthorized())
        untyped = request.method == "PUT" and _SCALE.fullmatch(request.rel_url.raw_path) is not None
        if request.body_exists and not untyped and not request.headers.get("Content-Type", "").strip():
            raise self._refusal("content type", unsupported_media_type())
        return user

    def _user(self, authorization: str, tokens: TokenIssuer) -> User | None:
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer":
            return None
        # compare in constant time: the duration must not reveal how much of a guess is right
        same = hmac.compare_digest(token.strip().encode(errors="surrogateescape"), self.token.encode())
        return ADMIN if same else tokens.user(token.strip())

    def _refusal(self, reason: str, refusal: StatusError) -> StatusError:
        self.refused[reason] += 1
        return refusal


def _means_this_server(request: web.BaseRequest) -> bool:
    if request.transport is None:
        return False  # the client is gone
    address = request.transport.get_extra_info("sockname")
    if isinstance(address, str):
        return True  # a path
    port = address[1]
    own = {f"[{name}]:{port}" if ":" in name else f"{name}:{port}" for name in NAMES}
    hosts = request.headers.getall("Host", [])
    return len(hosts) == 1 and hosts[0].lower() in own


MASTERS: Final = "system:masters"
"""The group whose members may do everything, whatever the roles say."""
NODES: Final = "system:nodes"
"""The group of the kubelets."""
AUTHENTICATED: Final = "system:authenticated"
UNAUTHENTICATED: Final = "system:unauthenticated"
ANONYMOUS_NAME: Final = "system:anonymous"
NODE_NAME: Final = "authentication.kubernetes.io/node-name"
"""Key of :attr:`User.extra` in tokens of pods: the pod's node (ServiceAccountTokenPodNodeInfo)."""
_ACCOUNT: Final = re.compile(r"system:serviceaccount:([^:]+):([^:]+)")


class User(Struct, frozen=True):
    """The user of a request.

    Attributes:
        name: such as ``system:serviceaccount:<namespace>:<name>``.
        extra: what else is known, such as the node of the pod whose token it is; keys in lower case.
    """

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def service_account(cls, namespace: str, name: str) -> Self:
        """Return a service account with its groups."""
        groups = (*account_groups(namespace), AUTHENTICATED)
        return cls(f"system:serviceaccount:{namespace}:{name}", groups)

    @property
    def is_master(self) -> bool:
        """Whether the user may do everything."""
        return MASTERS in self.groups

    def info(self) -> dict[str, Any]:
        """Return ``authentication.k8s.io/v1 UserInfo``."""
        found: dict[str, Any] = {"username": self.name}
        if self.uid:
            found["uid"] = self.uid
        if self.groups:
            found["groups"] = list(self.groups)
        if self.extra:
            found["extra"] = {key: list(values) for key, values in self.extra.items()}
        return found


ADMIN: Final = User("system:admin", (MASTERS, AUTHENTICATED))
"""The user of the server's own token, and of every request to a server without access control."""
ANONYMOUS: Final = User(ANONYMOUS_NAME, (UNAUTHENTICATED,))


def account_groups(namespace: str) -> tuple[str, ...]:
    """Return the groups of the service accounts of a namespace."""
    return "system:serviceaccounts", f"system:serviceaccounts:{namespace}"


def account_of(name: str) -> tuple[str, str] | None:
    """Return namespace and name of a service account by its user name; None for other users."""
    match = _ACCOUNT.fullmatch(name)
    return (match[1], match[2]) if match else None
