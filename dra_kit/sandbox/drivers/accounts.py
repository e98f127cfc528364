"""ServiceAccounts of a driver's roles, with the rights of the chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from dra_kit.apiserver.server import ApiServer
from dra_kit.client.api import Client
from dra_kit.client.credentials import Credentials
from dra_kit.client.resources import Resource
from dra_kit.errors import ConfigurationError
from dra_kit.sandbox.directory import write_kubeconfig

_SECONDS: Final = 30 * 24 * 3600.0  # a sandbox does not renew tokens


class RoleAccounts(Struct, frozen=True, kw_only=True):
    """The service accounts that the roles of drivers run as; without, all of them are the administrator.

    Attributes:
        namespace: of the accounts.
        node: name of the node role's; its token names the node, as that of a pod there.
        controller: name of the controller role's.
        webhook: name of the webhook role's.
        objects: made before the roles start: the namespace, accounts, roles and bindings, admission policies. A
            controller that would run them is not there, so that workloads must not be among them.
    """

    namespace: str
    node: str
    controller: str
    webhook: str
    objects: Sequence[Mapping[str, Any]] = ()


async def create_accounts(accounts: RoleAccounts, server: ApiServer, client: Client) -> None:
    """Make what the accounts need.

    Raises:
        ConfigurationError: an object is of a kind that is not served.
        KubeError: the API server refuses one.
    """
    for obj in accounts.objects:
        kind = server.api.registry.by_kind(obj["apiVersion"], obj["kind"])
        if kind is None:
            raise ConfigurationError(f"{obj['kind']} {obj['apiVersion']} is not served by the sandbox; leave it out")
        version = obj["apiVersion"].rpartition("/")[2]
        await client.create(Resource(kind.group, version, kind.plural, kind.kind, namespaced=kind.namespaced), obj)


class RoleCredentialsProvider:
    """The credentials of each role; without accounts, those of the administrator."""

    def __init__(
        self,
        server: ApiServer,
        admin: RoleCredentials,
        directory: Path,
        accounts: RoleAccounts | None,
        stack: ExitStack,
    ) -> None:
        self._server, self._admin, self._directory = server, admin, directory
        self._accounts, self._stack = accounts, stack
        self._known: dict[str, RoleCredentials] = {}

    def node(self, name: str) -> RoleCredentials:
        """Return that of the node role on a node."""
        return self._of(self._accounts.node, f"node-{name}", name) if self._accounts else self._admin

    def controller(self) -> RoleCredentials:
        """Return that of the controller role."""
        return self._of(self._accounts.controller, "controller") if self._accounts else self._admin

    def webhook(self) -> RoleCredentials:
        """Return that of the webhook role."""
        return self._of(self._accounts.webhook, "webhook") if self._accounts else self._admin

    def _of(self, account: str, role: str, node: str = "") -> RoleCredentials:
        assert self._accounts is not None  # noqa: S101 - the callers have looked
        if role not in self._known:
            path = self._directory / f"kubeconfig-{role}"
            token = self._server.token(self._accounts.namespace, account, node=node, seconds=_SECONDS)
            self._stack.enter_context(write_kubeconfig(path, self._server.kubeconfig(token)))
            self._known[role] = RoleCredentials(Credentials(self._server.connection(token)), path)
        return self._known[role]


class RoleCredentials(Struct, frozen=True):
    """How one role reaches the API server."""

    credentials: Credentials
    kubeconfig: Path
