"""Who makes a request."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Self

from msgspec import Struct, field

MASTERS: Final = "system:masters"
"""The group whose members may do everything, whatever the roles say."""

AUTHENTICATED: Final = "system:authenticated"
UNAUTHENTICATED: Final = "system:unauthenticated"
ANONYMOUS: Final = "system:anonymous"
NODE_NAME: Final = "authentication.kubernetes.io/node-name"
"""Key of :attr:`User.extra` in tokens of pods: the pod's node (ServiceAccountTokenPodNodeInfo)."""

_ACCOUNT: Final = re.compile(r"system:serviceaccount:([^:]+):([^:]+)")


class User(Struct, frozen=True):
    """Who makes a request.

    Attributes:
        name: such as ``system:serviceaccount:<namespace>:<name>``.
        groups: those that the user is in.
        uid: empty for none.
        extra: what else is known, such as the node of the pod whose token it is; keys in lower case.
    """

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def service_account(cls, namespace: str, name: str) -> Self:
        """Return a service account, with the groups that all of its kind have."""
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
"""Who holds the server's own token, and everybody where there is no door."""

NOBODY: Final = User(ANONYMOUS, (UNAUTHENTICATED,))


def account_groups(namespace: str) -> tuple[str, ...]:
    """Return the groups of the service accounts of a namespace."""
    return "system:serviceaccounts", f"system:serviceaccounts:{namespace}"


def account_of(name: str) -> tuple[str, str] | None:
    """Return namespace and name of a service account by its user name; None for other users."""
    match = _ACCOUNT.fullmatch(name)
    return (match[1], match[2]) if match else None
