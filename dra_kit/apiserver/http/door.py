"""The door of an API server that listens where others can reach it: who is let in, before anything else is looked at.

A kube-apiserver stands in a network of its own. This one listens on the loopback interface, where every user of the
machine, and every page in a browser, can send requests; and whoever may make a Pod runs commands as the owner.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections import Counter
from typing import Final

from aiohttp import web

from dra_kit.apiserver.answers import Refusal, forbidden_path, unauthorized, unsupported_media_type
from dra_kit.apiserver.authentication.tokens import Tokens
from dra_kit.apiserver.authorization.users import ADMIN, NOBODY, User
from dra_kit.apiserver.verbs.bodies import MEDIA_TYPES

NAMES: Final = ("127.0.0.1", "localhost", "::1")
"""What the server may be called: in its certificate, and in the header ``Host`` of a request."""

# the paths that kube-apiserver serves to anonymous users where its configuration leaves them only these
_OPEN: Final = re.compile(r"/(livez|readyz|healthz)(/.*)?")
_SCALE: Final = re.compile(r"/apis/apps/v1/namespaces/[^/]+/[^/]+/[^/]+/scale")


class Door:
    """Lets in who knows its token, or has one of a service account, and means this server.

    - ``Host`` must be one of :data:`NAMES` with the port, no name that an attacker's DNS server points here; over a
      unix socket, to which no such name leads, it may be any.
    - A request with an ``Origin`` is that of a web page, and refused whatever else it brings.
    - Without the token only ``/livez``, ``/readyz`` and ``/healthz`` are served; with a wrong one not even those.
    - A body must say what it is. kube-apiserver takes one without a ``Content-Type`` for JSON (1.37.1 does so), and it
      is the only form of JSON that a web page may send to a foreign server without asking it before. A PUT of a scale
      may come without: ``kubectl scale`` sends it so (client-go 0.37 ``scale/client.go``), and no page may send a PUT
      without asking.

    Attributes:
        token: the bearer token, a new random one for each door.
        refused: how many requests were turned away, by reason: ``host``, ``origin``, ``token``, ``content type``.
    """

    def __init__(self) -> None:
        self.token: Final = secrets.token_urlsafe(32)
        self.refused: Final[Counter[str]] = Counter()

    def check(self, request: web.BaseRequest, tokens: Tokens) -> User:
        """Let a request in; whose it is.

        Args:
            request: what comes.
            tokens: of service accounts.

        Raises:
            Refusal: 401, 403 or 415; it is not let in.
        """
        if not _means_this_server(request):
            raise self._refusal("host", forbidden_path("this server has another name: use the one in its kubeconfig"))
        if "Origin" in request.headers:
            raise self._refusal("origin", forbidden_path("web pages are not served here"))
        given = request.headers.get("Authorization")
        user = self._user(given, tokens) if given is not None else None
        if given is None and request.method in {"GET", "HEAD"} and _OPEN.fullmatch(request.rel_url.raw_path):
            user = NOBODY
        if user is None:
            raise self._refusal("token", unauthorized())
        untyped = request.method == "PUT" and _SCALE.fullmatch(request.rel_url.raw_path) is not None
        if request.body_exists and not untyped and not request.headers.get("Content-Type", "").strip():
            raise self._refusal("content type", unsupported_media_type(MEDIA_TYPES))
        return user

    def _user(self, authorization: str, tokens: Tokens) -> User | None:
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer":
            return None
        # its time must not tell how much of a guess was right
        same = hmac.compare_digest(token.strip().encode(errors="surrogateescape"), self.token.encode())
        return ADMIN if same else tokens.user(token.strip())

    def _refusal(self, reason: str, refusal: Refusal) -> Refusal:
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
