"""The profile of a driver: what a check cannot know without the hardware, from a small YAML file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from dra_kit.author.config_problems import describe_problems
from dra_kit.errors import ConfigurationError
from dra_kit.kubelet.cdi.spec import DeviceNode, Mount, SpecEdits
from dra_kit.kubernetes.manifests.documents import read_values, source_file

FILE: Final = "conformance.yaml"
"""The profile in a driver's project."""
_PROJECT: Final = "{project}"
_OCTAL: Final = re.compile(r"\\([0-7]{3})")


class _Model(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True
    )


class ExpectedContainer(_Model):
    """What a container with the claim gets.

    Attributes:
        env: values of variables, by name; both may have ``*`` for any text.
        mounts: paths in the container; may have ``*``.
        device_nodes: paths of device files in the container; may have ``*``.
    """

    env: dict[str, str] = Field(default_factory=dict)
    mounts: list[str] = Field(default_factory=list)
    device_nodes: list[str] = Field(default_factory=list)

    def missing_in(self, edits: SpecEdits) -> Iterator[str]:
        """Yield what the edits of CDI files lack, in words."""
        found = [variable.partition("=") for variable in edits.env]
        for name, value in self.env.items():
            values = [given for key, _, given in found if fnmatchcase(key, name)]
            if not values:
                yield f"variable {name} is missing"
            elif not any(fnmatchcase(given, value) for given in values):
                yield f"variable {name} is {' and '.join(map(repr, values))}, expected {value!r}"
        mounts = [mount.container_path for mount in edits.mounts]
        yield from (f"mount {path} is missing" for path in self.mounts if not _any(mounts, path))
        nodes = [node.path for node in edits.device_nodes]
        yield from (f"device node {path} is missing" for path in self.device_nodes if not _any(nodes, path))


def _any(found: list[str], pattern: str) -> bool:
    return any(fnmatchcase(text, pattern) for text in found)


def printed_edits(text: str, mark: str) -> SpecEdits:
    """Return what a container printed after the lines that begin with a mark."""
    parts: dict[str, list[str]] = {}
    lines: list[str] = []  # those before the first mark do not count
    for line in text.splitlines():
        if line.startswith(mark):
            lines = parts.setdefault(line.removeprefix(mark), [])
        else:
            lines.append(line)
    mounts = [words[4] for line in parts.get("mounts", ()) if len(words := line.split(" ")) > 4]
    return SpecEdits(
        env=tuple(item for item in "\n".join(parts.get("env", ())).rstrip("\n").split("\0") if item),
        mounts=tuple(
            Mount(host_path="", container_path=_OCTAL.sub(lambda found: chr(int(found[1], 8)), path)) for path in mounts
        ),
        device_nodes=tuple(DeviceNode(path=path) for path in parts.get("files", ())),
    )


def injected(having: SpecEdits, without: SpecEdits) -> list[str]:
    """Return what only the first of two containers has, in words."""

    def only(ours: Iterator[str], others: Iterator[str], what: str) -> list[str]:
        known = set(others)
        return [f"{what} {item}" for item in ours if item not in known]

    return [
        *only(iter(having.env), iter(without.env), "variable"),
        *only(
            (item.container_path for item in having.mounts), (item.container_path for item in without.mounts), "mount"
        ),
        *only((item.path for item in having.device_nodes), (item.path for item in without.device_nodes), "file"),
    ]


class OpaqueSetting(_Model):
    """Opaque parameters of the driver, and what a container gets because of them."""

    parameters: dict[str, Any]
    expect: ExpectedContainer


class DriverRights(_Model):
    """The rights of the driver's node plugin in a cluster, from manifests or from a helm chart.

    Attributes:
        manifests: files with its service account, roles, bindings and policies; relative to the profile.
        chart: folder of a helm chart, whose release and namespace have the chart's name; relative to the profile.
            Without manifests and chart, it is dra-kit's own.
        values: files of values of the chart, in increasing priority; relative to the profile.
        service_account: its service account, as ``namespace/name``.
    """

    manifests: list[Path] = Field(default_factory=list)
    chart: Path | None = None
    values: list[Path] = Field(default_factory=list)
    service_account: str = Field(pattern=r"^[^/]+/[^/]+$")


def _listed(value: object) -> object:
    """Return a list for a single text."""
    return [value] if isinstance(value, str) else value


class DriverProfile(_Model):
    """The profile of a driver.

    Attributes:
        driver: name of the driver; by default the one that registers.
        device_class: class of the claims; by default one that selects all devices of the driver.
        device_classes: manifests with classes to create first, or one; relative to the profile.
        request: further fields of a request in v1, such as ``selectors``, ``capacity`` or ``tolerations``.
        shared_request: further fields of a request for a share of a device, such as another ``deviceClassName``.
        configuration: opaque parameters of all claims; None for none.
        configurations: opaque parameters that differ in what a container gets, for the precedence of configuration.
        expect: what a container with a claim of one device gets.
        devices: how many claims can hold devices at the same time; by default as many as devices are published.
        environment: variables of the driver's environment; ``{project}`` in a value is the folder of the profile.
        orphans_within: seconds after which the driver releases a claim that was deleted without an unprepare.
        start_within: seconds in which the driver registers and publishes its devices.
        steady_after: seconds without a write of slices, after which the driver must not write them without a reason.
        restored_within: seconds in which the driver restores slices that others change.
        without_devices: variables, like ``environment``, with which the driver finds no device; None if there are none.
        metadata_updated_within: seconds after a prepare in which the driver updates device metadata; None for never.
        pod_within: seconds in which a pod in a real cluster is scheduled, prepared, started or ended, each.
        rbac: the rights that the driver has in a cluster; None if they are not known here.
        api_versions: versions of resource.k8s.io, each of which is enough for the driver.
    """

    driver: str | None = None
    device_class: str | None = None
    device_classes: Annotated[list[Path], BeforeValidator(_listed)] = Field(default_factory=list)
    request: dict[str, Any] = Field(default_factory=dict)
    shared_request: dict[str, Any] = Field(default_factory=dict)
    configuration: dict[str, Any] | None = None
    configurations: list[OpaqueSetting] = Field(default_factory=list)
    expect: ExpectedContainer | None = None
    devices: int | None = Field(default=None, ge=1)
    environment: dict[str, str] = Field(default_factory=dict)
    orphans_within: float | None = Field(default=None, gt=0)
    start_within: float = Field(default=60.0, gt=0)
    steady_after: float = Field(default=5.0, ge=0)
    restored_within: float = Field(default=90.0, gt=0)
    without_devices: dict[str, str] | None = None
    metadata_updated_within: float | None = Field(default=None, gt=0)
    pod_within: float = Field(default=120.0, gt=0)
    rbac: DriverRights | None = None
    api_versions: list[Literal["v1", "v1beta2", "v1beta1"]] = ["v1"]


def read_profile(path: Path) -> DriverProfile:
    """Read the profile in a YAML file.

    Raises:
        ConfigurationError: the file cannot be read, or does not have the shape of a profile.
    """
    values = read_values(source_file(path))
    if len(values) != 1 or not isinstance(values[0], Mapping):
        raise ConfigurationError(f"profile {path} must be one YAML document with a mapping; see {_PAGE}")
    try:
        profile = DriverProfile.model_validate(values[0])
    except ValidationError as error:
        problems = describe_problems(error, DriverProfile, values[0], f"see {_PAGE}")
        raise ConfigurationError(f"profile {path} is invalid: {problems}") from None
    profile = profile.model_copy(update={"device_classes": [path.parent / item for item in profile.device_classes]})
    variables = {
        name: {key: value.replace(_PROJECT, str(path.parent.absolute())) for key, value in given.items()}
        for name in ("environment", "without_devices")
        if (given := getattr(profile, name)) is not None
    }
    profile = profile.model_copy(update=variables)
    if profile.rbac is not None:
        rights = profile.rbac
        files = {name: [path.parent / item for item in getattr(rights, name)] for name in ("manifests", "values")}
        chart = None if rights.chart is None else path.parent / rights.chart
        if rights.manifests and (chart is not None or rights.values):
            raise ConfigurationError(
                f"profile {path}: rbac has manifests, and a chart or values; keep one; see {_PAGE}"
            )
        profile = profile.model_copy(update={"rbac": rights.model_copy(update={**files, "chart": chart})})
    return profile


_PAGE: Final = "docs/how-to/conformance.md"
