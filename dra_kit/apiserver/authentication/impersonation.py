"""Requests as somebody else: the headers ``Impersonate-*``.

Source: k8s.io/apiserver 0.37 ``pkg/endpoints/filters/impersonation``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final
from urllib.parse import unquote

from multidict import CIMultiDictProxy

from dra_kit.apiserver.answers import bad_request
from dra_kit.apiserver.authorization.attributes import Attributes, Authorizer, require
from dra_kit.apiserver.authorization.users import (
    ANONYMOUS,
    AUTHENTICATED,
    UNAUTHENTICATED,
    User,
    account_groups,
    account_of,
)
from dra_kit.kubernetes.resource.field_errors import go_quote

_EXTRA: Final = "impersonate-extra-"


def impersonated(headers: CIMultiDictProxy[str], user: User, authorizer: Authorizer) -> User:
    """Return the user that the headers of a request name; the user itself without such headers.

    Raises:
        Refusal: 400, they name no user; 403, the user may not be whom they name.
    """
    wanted = _wanted(headers)
    if wanted is None:
        return user
    if not wanted.name:
        raise bad_request(f"requested {_shown(wanted)} without impersonating a user name")
    account = account_of(wanted.name)
    for attributes in _asked(wanted, account):
        require(authorizer, user, attributes)
    groups = list(wanted.groups)
    if not groups and account is not None:
        groups += account_groups(account[0])
    if not {AUTHENTICATED, UNAUTHENTICATED} & set(groups):
        groups.append(UNAUTHENTICATED if wanted.name == ANONYMOUS else AUTHENTICATED)
    return User(wanted.name, tuple(groups), wanted.uid, wanted.extra)


def _wanted(headers: CIMultiDictProxy[str]) -> User | None:
    extra: dict[str, tuple[str, ...]] = {}
    for name, value in headers.items():
        if name.lower().startswith(_EXTRA):
            key = unquote(name[len(_EXTRA) :].lower())
            extra[key] = (*extra.get(key, ()), value)
    groups = tuple(headers.getall("Impersonate-Group", ()))
    name, uid = headers.get("Impersonate-User", ""), headers.get("Impersonate-Uid", "")
    return User(name, groups, uid, extra) if name or groups or uid or extra else None


def _asked(wanted: User, account: tuple[str, str] | None) -> Iterator[Attributes]:
    """Yield the rights that a user needs to impersonate another one."""
    if account is not None:
        yield Attributes("impersonate", "", "serviceaccounts", namespace=account[0], name=account[1])
    else:
        yield Attributes("impersonate", "", "users", name=wanted.name)
    yield from (Attributes("impersonate", "", "groups", name=group) for group in wanted.groups)
    group = "authentication.k8s.io"
    for key, values in wanted.extra.items():
        yield from (Attributes("impersonate", group, "userextras", key, name=value) for value in values)
    if wanted.uid:
        yield Attributes("impersonate", group, "uids", name=wanted.uid)


def _shown(user: User) -> str:
    """Return a user as Go prints it."""
    extra = ", ".join(f"{go_quote(key)}:{_strings(values)}" for key, values in sorted(user.extra.items()))
    shown = f"map[string][]string{{{extra}}}" if user.extra else "map[string][]string(nil)"
    return (
        f"&user.DefaultInfo{{Name:{go_quote(user.name)}, UID:{go_quote(user.uid)}, Groups:{_strings(user.groups)}, "
        f"Extra:{shown}}}"
    )


def _strings(values: Iterable[str]) -> str:
    listed = ", ".join(map(go_quote, values))
    return f"[]string{{{listed}}}" if listed else "[]string(nil)"
