"""Manifests to be checked, and what is found in them."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from dra_kit.diagnosis.lint.check import check, fix_files
from dra_kit.diagnosis.lint.devices import LintContext
from dra_kit.diagnosis.lint.findings import LintFinding
from dra_kit.diagnosis.selector_mistakes.device_rules import Advertised
from dra_kit.kubernetes.manifests.documents import SourceFile
from dra_kit.kubernetes.release import UNMODIFIED
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.slice_reader import LazySlice

PLAIN = LintContext(UNMODIFIED)
DRIVER = "gpu.example.com"
GUARD = f'device.driver == "{DRIVER}"'
A = f'device.attributes["{DRIVER}"]'
C = f'device.capacity["{DRIVER}"]'


def found(text: str, surroundings: LintContext = PLAIN, *, name: str = "order.yaml") -> list[LintFinding]:
    """The findings in one file."""
    return check([SourceFile(name, textwrap.dedent(text))], surroundings).findings


def rules(text: str, surroundings: LintContext = PLAIN) -> list[str]:
    """The ids of the rules of the findings in one file."""
    return [finding.rule for finding in found(text, surroundings)]


def fixed(text: str, surroundings: LintContext = PLAIN) -> str:
    """The text of a file after its fixes."""
    return fix_files([SourceFile("order.yaml", text)], surroundings).files[0].text


def underlined(finding: LintFinding) -> str:
    """What the marks are under."""
    return finding.source[finding.column - 1 : finding.end_column - 1]


def device_class(*expressions: str, name: str = "gpu") -> str:
    """A DeviceClass with selectors."""
    lines = ["apiVersion: resource.k8s.io/v1", "kind: DeviceClass", f"metadata: {{name: {name}}}", "spec:"]
    lines.append("  selectors:" if expressions else "  selectors: []")
    for expression in expressions:
        lines += ["  - cel:", "      expression: |-", textwrap.indent(expression, " " * 8)]
    return "\n".join(lines) + "\n"


def claim(
    body: str = "deviceClassName: gpu", *, extra: str = "", kind: str = "ResourceClaim", name: str = "lunch"
) -> str:
    """A claim, or template, with one request ``gpu``, and what else belongs below ``devices``."""
    spec = [
        "devices:",
        "  requests:",
        "  - name: gpu",
        "    exactly:",
        textwrap.indent(textwrap.dedent(body).strip("\n"), " " * 6),
        textwrap.indent(textwrap.dedent(extra).strip("\n"), " " * 2),
    ]
    if kind == "ResourceClaimTemplate":
        spec = ["spec:", *[textwrap.indent(line, "  ") for line in spec]]
    text = textwrap.indent("\n".join(spec), "  ")
    return f"apiVersion: resource.k8s.io/v1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec:\n{text}\n"


def pod(entries: str, uses: str) -> str:
    """A pod with one container; YAML of its ``resourceClaims`` and of the container's ``claims``, as flow lists."""
    return textwrap.dedent(
        f"""\
        apiVersion: v1
        kind: Pod
        metadata: {{name: guest}}
        spec:
          containers:
          - name: eater
            image: busybox
            resources:
              claims: {uses}
          resourceClaims: {entries}
        """
    )


def advertised(devices: Sequence[dict[str, object]], *, complete: bool = False) -> LintContext:
    """Devices of DRIVER, in the form of the API, to check against."""
    models = [v1.Device.model_validate({"name": f"gpu-{i}", **one}) for i, one in enumerate(devices)]
    return LintContext(
        UNMODIFIED, advertised=Advertised([LazySlice.of_pool(DRIVER, "node", models)], complete=complete)
    )


GPUS = [
    {
        "attributes": {"model": {"string": "H200"}, "cores": {"int": 132}, "driverVersion": {"version": "550.1.0"}},
        "capacity": {"memory": {"value": "141Gi"}},
    },
    {
        "attributes": {"model": {"string": "A100"}, "cores": {"int": 108}, "mig": {"bool": True}},
        "capacity": {"memory": {"value": "80Gi"}},
    },
]
"""Two devices; only one has ``driverVersion``, only the other ``mig``."""
KNOWN = advertised(GPUS)
WHOLE_CLUSTER = advertised(GPUS, complete=True)
SURROUNDINGS = [LintContext(UNMODIFIED), KNOWN, WHOLE_CLUSTER]
"""All that may be known of the devices."""
