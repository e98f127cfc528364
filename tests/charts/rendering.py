"""The chart, rendered by helm without any cluster."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.find import NotFound, find

CHART = Path(__file__).resolve().parents[2] / "charts" / "dra-driver"
RELEASE = "pizza"
NAMESPACE = "pizza-system"
DRIVER = "kitchen.pizza.example"
DEPLOYED: Mapping[str, Any] = {
    "driverName": DRIVER,
    "image": {"repository": "images.example/pizza-driver", "tag": "1.2.3"},
    "target": "pizza_driver.driver:driver",
}
"""What everybody has to say."""
ALL_ROLES: Mapping[str, Any] = {**DEPLOYED, "webhook": {"certificate": {"secretName": "webhook"}}}
"""The same with the webhook."""


def target(folder: Path, settings: str) -> Path:
    """A driver with settings, whose fields are lines of a pydantic model."""
    file = folder / "pizzeria.py"
    file.write_text(
        "import dra_kit as dra\nfrom typing import Literal\nfrom pydantic import BaseModel, Field, FilePath\n"
        f"class Settings(BaseModel):\n{settings}"
        "class Oven(dra.DeviceProvider):\n    def discover(self): yield []\n"
        "class Waiter(dra.Preparer):\n    def prepare(self, claim, device): return dra.Prepared()\n"
        "driver = dra.Driver('dra.pizza', provider=Oven(), preparer=Waiter(), settings=Settings)\n"
    )
    return file


def parsed(text: str) -> Iterator[Any]:
    """The objects of a text of YAML; by libyaml, which takes a tenth of the time."""
    loader = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
    return (item for item in yaml.load_all(text, loader) if item is not None)


class Refused(Exception):
    """Helm does not render these values; the text is what a person reads."""


@dataclass(frozen=True)
class Helm:
    """A helm command.

    Attributes:
        path: of the program.
        cache: folder that the processes of a test run share: the same values are rendered once; None: each time.
    """

    path: Path
    cache: Path | None = None

    def render(self, values: Mapping[str, Any], *, chart: Path = CHART) -> Manifests:
        """The chart's manifests for these values.

        Raises:
            Refused: by the schema or a template.
        """
        if self.cache is None or chart != CHART:
            return Manifests(list(parsed(self.template(values, chart=chart))))
        kept = self.cache / f"{hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()}.json"
        if not kept.exists():
            made = kept.with_suffix(f".{os.getpid()}")  # another process may be at the same
            made.write_text(json.dumps(list(parsed(self.template(values)))))
            made.rename(kept)
        return Manifests(json.loads(kept.read_text()))

    def template(self, values: Mapping[str, Any], *, chart: Path = CHART) -> str:
        """What ``helm template`` prints.

        Raises:
            Refused: by the schema or a template.
        """
        return self._run("template", values, RELEASE, chart)

    def lint(self, values: Mapping[str, Any], *, chart: Path = CHART) -> None:
        """Look at the chart itself.

        Raises:
            Refused: it is not well formed.
        """
        self._run("lint", values, chart, "--strict")

    def _run(self, command: str, values: Mapping[str, Any], *names: str | Path) -> str:
        words = [self.path, command, *names, "--namespace", NAMESPACE, "--values", "-"]
        result = subprocess.run(
            list(map(str, words)), input=json.dumps(values), capture_output=True, text=True, check=False, timeout=240
        )
        if result.returncode:
            raise Refused(result.stderr + result.stdout)
        return result.stdout


@dataclass(frozen=True)
class Manifests:
    """Objects of a release."""

    objects: Sequence[Any]

    def kinds(self) -> set[str]:
        """All kinds that there are."""
        return {item["kind"] for item in self.objects}

    def names(self, kind: str) -> set[str]:
        """Names of all objects of a kind."""
        return {item["metadata"]["name"] for item in self.objects if item["kind"] == kind}

    def named(self, kind: str, name: str = "") -> Any:
        """The only object of a kind, or the one with that name."""
        found = [item for item in self.objects if item["kind"] == kind and name in {"", item["metadata"]["name"]}]
        assert len(found) == 1, f"{len(found)} of {kind} {name}"
        return found[0]

    def pod(self, role: str) -> Any:
        """The pod's spec of a role."""
        kind = "DaemonSet" if role == "node" else "Deployment"
        return self.named(kind, f"{RELEASE}-{role}")["spec"]["template"]["spec"]

    def container(self, role: str) -> Any:
        """The only container of a role."""
        (container,) = self.pod(role)["containers"]
        return container

    def environment(self, role: str) -> dict[str, str]:
        """The container's variables; the field's path of those that the kubelet fills in."""
        return {
            item["name"]: item["value"] if "value" in item else item["valueFrom"]["fieldRef"]["fieldPath"]
            for item in self.container(role)["env"]
        }


def find_helm(cache: Path | None = None) -> Helm:
    """Helm on the PATH, or among the binaries of the cluster tests.

    Args:
        cache: of it.

    Raises:
        NotFound: it is in neither.
    """
    if on_path := shutil.which("helm"):
        return Helm(Path(on_path), cache)
    found = find()
    folder = found.assets
    if found.tool is not None:
        result = subprocess.run([found.tool, "assets"], capture_output=True, text=True, check=True, timeout=240)
        folder = Path(result.stdout.strip().splitlines()[-1])
    if folder is None or not os.access(folder / "helm", os.X_OK):
        raise NotFound(f"helm is neither in the PATH nor in {folder}")
    return Helm(folder / "helm", cache)
