"""One cluster as its API server knows it: storage, kinds, access rights and tokens; requests and responses.

Which versions of the built-in kinds are served is ``--runtime-config`` of kube-apiserver. Source: k8s.io/apiserver 0.37
``pkg/server/resourceconfig`` and ``pkg/server/options/api_enablement.go``; defaults and messages measured on
kube-apiserver 1.37.1.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Protocol, cast

import yaml
from msgspec import Struct, field
from msgspec.structs import replace
from typing_extensions import override

from dra_kit.apiserver.authentication import ADMIN, TokenIssuer, User
from dra_kit.apiserver.authorization import Rbac
from dra_kit.apiserver.kinds.admission_registration import POLICY_KINDS, WEBHOOK_KINDS
from dra_kit.apiserver.kinds.core import CORE_KINDS, ENDPOINT_KINDS, EVENT_KINDS, NODE_KINDS, STORED_KINDS
from dra_kit.apiserver.kinds.custom_resources import DEFINITION_KINDS
from dra_kit.apiserver.kinds.kind import Kind, KindRegistry, StrategyContext
from dra_kit.apiserver.kinds.pods import POD_KINDS
from dra_kit.apiserver.kinds.rbac import RBAC_KINDS
from dra_kit.apiserver.kinds.resource import RESOURCE_API_KINDS
from dra_kit.apiserver.kinds.scheduling import GROUP_KINDS
from dra_kit.apiserver.kinds.services import SERVICE_KINDS
from dra_kit.apiserver.kinds.workloads import WORKLOAD_KINDS
from dra_kit.apiserver.node_authorization import NodeAuthorizer
from dra_kit.apiserver.pod_log import PodLogSource
from dra_kit.apiserver.pod_streams import PodStreams
from dra_kit.apiserver.requests import Query, Target, request_verb
from dra_kit.apiserver.status_errors import forbidden_object, not_found
from dra_kit.apiserver.storage import Storage, StoredObject
from dra_kit.kubernetes.release import Change, Release
from dra_kit.kubernetes.resource.field_errors import go_quote
from dra_kit.kubernetes.resource.schema import protobuf
from dra_kit.kubernetes.resource.schema.types import decode, prune, reaches_raw
from dra_kit.kubernetes.values.json import Object, escape_html, go_json

KINDS: Final[tuple[Kind, ...]] = (
    *CORE_KINDS,
    *SERVICE_KINDS,
    *RBAC_KINDS,
    *WORKLOAD_KINDS,
    *STORED_KINDS,
    *ENDPOINT_KINDS,
    *WEBHOOK_KINDS,
    *POLICY_KINDS,
    *POD_KINDS,
    *NODE_KINDS,
    *EVENT_KINDS,
    *RESOURCE_API_KINDS,
    *GROUP_KINDS,
    *DEFINITION_KINDS,
)
"""The built-in kinds; some are only served with a feature gate."""


class ApiRequest(Struct, frozen=True):
    """A request on a resource.

    Attributes:
        content_type: of the body, without parameters.
        warnings: texts for ``Warning`` headers of the answer, whichever it is.
    """

    method: str
    target: Target
    query: Query
    body: bytes = b""
    content_type: str = "application/json"
    accept: str = ""
    agent: str = ""
    user: User = ADMIN
    warnings: list[str] = field(default_factory=list)


class ApiResponse(Struct):
    """A response with one JSON value.

    Attributes:
        kind: what it is an object or list of, for tables.
        items: the objects in it in storage version, for tables and protobuf; None where the body is all there is.
        list_metadata: the metadata of a list, for protobuf; None for one object.
        listed: the objects of a list, for protobuf.
        warnings: texts for ``Warning`` headers.
    """

    body: Object | bytes
    code: int = 200
    kind: Kind | None = None
    items: Sequence[Object] | None = None
    warnings: Sequence[str] = ()
    list_metadata: Object | None = None
    listed: Sequence[StoredObject] = ()


def success(release: Release, written: Object, **more: Any) -> Object:
    """Return the Status that confirms a change instead of the written object."""
    metadata = {}
    if release.has(Change.STATUSES_HAVE_VERSIONS):
        metadata["resourceVersion"] = written["metadata"]["resourceVersion"]
    return {"kind": "Status", "apiVersion": "v1", "metadata": metadata, "status": "Success", **more}


def encode(value: object) -> bytes:
    """Return JSON as the API server writes it: compact, UTF-8, safe in HTML."""
    return escape_html(json.dumps(value, separators=(",", ":"), ensure_ascii=False)).encode()


class _YamlDumper(yaml.CSafeDumper):
    """Quotes strings as Go's YAML does, and repeats a value that occurs twice."""

    @override
    def ignore_aliases(self, data: object) -> bool:
        return True


def _yaml_string(dumper: yaml.CSafeDumper, text: str) -> yaml.ScalarNode:
    resolve = cast("Callable[..., str]", dumper.resolve)
    plain = resolve(yaml.ScalarNode, text, (True, False)) == "tag:yaml.org,2002:str"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


_YamlDumper.add_representer(str, _yaml_string)


def encode_yaml(value: object) -> bytes:
    """Return YAML as the API server writes it."""
    return yaml.dump(value, Dumper=_YamlDumper, sort_keys=True, allow_unicode=True).encode()


def now() -> str:
    """Return the time as ``metav1.Time``."""
    return time_text(datetime.now(UTC))


def time_text(moment: datetime) -> str:
    """Return a time in UTC as ``metav1.Time``."""
    return moment.isoformat()[:19] + "Z"


class AdmissionAttributes(Struct, frozen=True):
    """One write, as admission plugins see it.

    Attributes:
        obj: after it, in storage version; None for a deletion.
        old: before it, in storage version; None for a creation.
    """

    api: Api
    kind: Kind
    request: ApiRequest
    dry_run: bool
    operation: str
    obj: Object | None
    old: Object | None

    @property
    def name(self) -> str:
        """The object's name; empty for a deletion of a collection, although each object is reviewed."""
        if self.obj is not None:
            return str(self.obj["metadata"].get("name") or self.request.target.name)
        return self.request.target.name


class AdmissionPlugin(Protocol):
    """A plugin that may change an object before it is stored, or reject it."""

    async def mutate(self, write: AdmissionAttributes, warnings: list[str]) -> Object:
        """Return the object to store for a creation or an update, in storage version.

        Raises:
            StatusError: the object is rejected.
        """
        ...

    async def review(self, write: AdmissionAttributes, warnings: list[str]) -> None:
        """Validate a write after all mutations; add warnings for the client, even if the write is rejected.

        Raises:
            StatusError: the write is rejected.
        """
        ...


@dataclasses.dataclass(slots=True)
class Api:
    """One cluster's API.

    Attributes:
        pod_log: returns the logs of containers; None if the cluster runs no containers.
        pod_streams: connects clients with containers; None if the cluster runs no containers.
    """

    release: Release
    admission: AdmissionPlugin
    registry: KindRegistry
    storage: Storage = dataclasses.field(default_factory=Storage)
    pod_log: PodLogSource | None = None
    pod_streams: PodStreams | None = None
    rbac: Rbac = dataclasses.field(init=False)
    tokens: TokenIssuer = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.rbac = Rbac(self.lookup, self.listed, first=NodeAuthorizer(self.lookup, self.listed))
        self.tokens = TokenIssuer(self.lookup)

    def lookup(self, resource: str, key: str) -> Object | None:
        """Return a stored object."""
        stored = self.storage.get(resource, key)
        return None if stored is None else stored.object

    def stored(self, kind: Kind, target: Target) -> StoredObject:
        """Return the object that a path names.

        Raises:
            StatusError: 404.
        """
        stored = self.storage.get(kind.resource, kind.key(target.namespace, target.name))
        if stored is None:
            raise not_found(kind.group, kind.plural, target.name)
        return stored

    def listed(self, resource: str, prefix: str = "") -> Iterator[Object]:
        """Return all stored objects of a resource whose keys have a prefix."""
        return (stored.object for _, stored in self.storage.items(resource, prefix))

    def context(self, request: ApiRequest) -> StrategyContext:
        """Return the context of a request for strategies."""
        target = request.target
        return StrategyContext(
            self.release, target.api_version, now(), self.lookup, self.listed, self.rbac, request.user,
            request_verb(request.method, target, request.query), request.warnings,
        )  # fmt: skip

    def own_context(self, api_version: str) -> StrategyContext:
        """Return the context for writes of the server itself."""
        return StrategyContext(self.release, api_version, now(), self.lookup, self.listed, self.rbac)

    def wire(self, kind: Kind, stored: Object, api_version: str) -> Object:
        """Return a stored object in a served version; it may share parts with the stored one."""
        obj = kind.strategy.from_storage(stored, api_version)
        if api_version != kind.storage_api_version:
            # another version may write other zero values
            obj = prune(obj, kind.type_of(api_version), self.release.version)
        return {"kind": kind.kind, "apiVersion": api_version} | {
            key: value for key, value in obj.items() if key not in {"kind", "apiVersion"}
        }

    def encoded(self, kind: Kind, stored: StoredObject, api_version: str) -> bytes:
        """Return the JSON of a stored object in a served version; made once."""
        cached = stored.encoded.get(api_version)
        if cached is None:
            cached = stored.encoded[api_version] = self.encoded_wire(kind, stored.object, api_version)
        return cached

    def encoded_wire(self, kind: Kind, stored: Object, api_version: str) -> bytes:
        """Return the JSON of :meth:`wire`, opaque objects by their texts."""
        wire = self.wire(kind, stored, api_version)
        return go_json(wire, sort=False).encode() if reaches_raw(kind.type_of(api_version)) else encode(wire)

    def message(self, kind: Kind, stored: StoredObject, api_version: str) -> bytes:
        """Return the protobuf of a stored object in a served version, without its envelope; made once."""
        cached = stored.messages.get(api_version)
        if cached is None:
            wire = self.wire(kind, stored.object, api_version)
            cached = stored.messages[api_version] = protobuf.encode_message(wire, kind.type_of(api_version))
        return cached

    def decoded(self, kind: Kind, wire: Mapping[str, Any], api_version: str) -> Object:
        """Return a new object in storage version from one of a served version."""
        obj: Object = decode(wire, kind.type_of(api_version), self.release.version)
        return self.to_storage(kind, obj, api_version)

    def to_storage(self, kind: Kind, obj: Object, api_version: str) -> Object:
        """Convert a decoded object in place or into a new one."""
        obj = kind.strategy.to_storage(obj, api_version)
        obj["kind"], obj["apiVersion"] = kind.kind, kind.storage_api_version
        return obj

    def pruned(self, kind: Kind, obj: Object) -> Object:
        """Return an object in storage version as it is stored."""
        written: Object = prune(obj, kind.stored_type, self.release.version)
        return written

    def require_namespace(self, kind: Kind, request: ApiRequest, name: str) -> None:
        """Reject the creation of objects in a namespace that does not exist or is being deleted."""
        if not kind.namespaced:
            return
        namespace = self.lookup("namespaces", request.target.namespace)
        if namespace is None:
            raise not_found("", "namespaces", request.target.namespace)
        if "deletionTimestamp" in namespace["metadata"]:
            cause = (
                f"unable to create new content in namespace {request.target.namespace} because it is being terminated"
            )
            raise forbidden_object(kind.group, kind.plural, name, cause)


_MATCHERS: Final = {
    "api/all": re.compile(r".*"),
    "api/ga": re.compile(r"v\d+"),
    "api/beta": re.compile(r"v\d+beta\d+"),
    "api/alpha": re.compile(r"v\d+alpha\d+"),
}
"""The versions of all groups that a key stands for; a later key takes precedence."""
_BOOLEANS: Final = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True", ""), True),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False),
}  # fmt: skip


class RuntimeConfig(Struct, frozen=True):
    """Which versions are switched on or off.

    Attributes:
        matching: by ``api/all``, ``api/ga``, ``api/beta`` and ``api/alpha``.
        explicit: by ``<group>/<version>`` and ``<group>/<version>/<plural>``.
    """

    matching: Mapping[str, bool] = field(default_factory=dict)
    explicit: Mapping[str, bool] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> RuntimeConfig:
        """Read ``KEY=BOOL`` pairs that are separated by commas; a key alone is true.

        Raises:
            ValueError: a key or value is not valid, or no kind has the version.
        """
        given = {}
        for pair in filter(None, text.split(",")):
            key, _, value = pair.partition("=")
            given[key.strip()] = value.strip()
        if given == {"api/all": "false"}:
            raise ValueError("invalid runtime-config with only api/all=false")
        known = {f"{kind.group}/{version}" for kind in KINDS for version in kind.types}
        matching, explicit = {}, {}
        for key, value in given.items():
            if key in _MATCHERS:
                if value not in {"true", "false"}:
                    raise ValueError(f"invalid value {key}={value}")
                matching[key] = value == "true"
            else:
                explicit[key] = _boolean(key, value, known)
        return cls(matching, explicit)

    def serves(self, kind: Kind, version: str) -> bool:
        """Return whether a version of a kind is served."""
        is_served = version not in kind.off_by_default
        for key, pattern in _MATCHERS.items():
            if key in self.matching and pattern.fullmatch(version):
                is_served = self.matching[key]
        is_served = self.explicit.get(f"{kind.group}/{version}", is_served)
        return self.explicit.get(f"{kind.group}/{version}/{kind.plural}", is_served)

    def served(self, release: Release) -> Iterator[Kind]:
        """Yield the built-in kinds that a release serves, with their served versions only."""
        for kind in (kind.in_release(release) for kind in KINDS if not kind.gate or kind.gate in release):
            types = {version: name for version, name in kind.types.items() if self.serves(kind, version)}
            if types:
                yield replace(kind, types=types)

    def switched_off(self) -> list[str]:
        """Return ``<group>/<version>`` of built-in kinds that would be served by default, without a feature gate."""
        return sorted({
            f"{kind.group}/{version}" if kind.group else version
            for kind in KINDS
            for version in kind.types
            if not kind.gate and version not in kind.off_by_default and not self.serves(kind, version)
        })  # fmt: skip


ALPHA_VERSIONS: Final = "resource.k8s.io/v1alpha3=true"
"""The runtime configuration that belongs to the alpha features of resource.k8s.io."""
ALL_VERSIONS: Final = RuntimeConfig({"api/all": True})
"""Everything is served that the server knows."""


def _boolean(key: str, value: str, known: set[str]) -> bool:
    group, slash, rest = key.partition("/")
    version, _, plural = rest.partition("/")
    if not slash or "/" in plural:
        raise ValueError(f"runtime-config invalid key {key}")
    if not any(name.startswith(f"{group}/") for name in known):
        raise ValueError(f"unknown api groups {group}/{version}")
    if f"{group}/{version}" not in known:
        raise ValueError(f"group version {group}/{version} that has not been registered")
    if value not in _BOOLEANS:
        cause = f"strconv.ParseBool: parsing {go_quote(value)}: invalid syntax"
        raise ValueError(f"invalid value of {key}: {value}, err: {cause}")
    if plural != plural.lower():
        detail = f"group/version/resource and resource is always lowercase plural, not {go_quote(plural)}"
        raise ValueError(f"invalid key {key}: {detail}")
    return _BOOLEANS[value]
