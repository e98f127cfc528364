"""Helm charts of drivers: the order of their objects, hooks, readiness, certificates of cert-manager."""

from __future__ import annotations

import base64
import shlex
import ssl
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_kit.client.informer import ObjectChange
from dra_kit.client.resources import (
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    PODS,
    SECRETS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
    Resource,
)
from dra_kit.errors import ConfigurationError, SandboxError
from dra_kit.sandbox.charts import (
    Capabilities,
    Chart,
    ChartInstaller,
    copy_without_disabled_charts,
    find_helm,
    install_plan,
    parse_charts,
    render,
)
from dra_kit.sandbox.cluster import Sandbox, SandboxSettings
from dra_kit.sandbox.controllers.certificates import CERTIFICATES, ISSUERS, serve_certificate_kinds
from tests.charts import rendering
from tests.cluster.find import NotFound
from tests.unit.sandbox.cluster.kubelet.polling import until

SLEEP = [sys.executable, "-c", "import time; time.sleep(1000)"]


def hook(name: str, events: str, weight: str = "", policy: str = "", **fields: Any) -> dict[str, Any]:
    given = {"helm.sh/hook": events, "helm.sh/hook-weight": weight, "helm.sh/hook-delete-policy": policy}
    annotations = {key: text for key, text in given.items() if text}
    return {"apiVersion": "v1", "kind": "ConfigMap", **fields, "metadata": {"name": name, "annotations": annotations}}


def config_map(name: str, **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **metadata}}


DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "ovens.kitchen.example"},
    "spec": {
        "group": "kitchen.example",
        "names": {"kind": "Oven", "plural": "ovens"},
        "scope": "Namespaced",
        "versions": [
            {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
        ],
    },
}
OVEN = {"apiVersion": "kitchen.example/v1", "kind": "Oven", "metadata": {"name": "first"}}


def workload(kind: str, name: str, **container: Any) -> dict[str, Any]:
    labels = {"app": name}
    template = {
        "metadata": {"labels": labels},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "image": "kitchen/oven:1", **container}],
        },
    }
    spec = {"selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a chart."""
    (tmp_path / "Chart.yaml").write_text("apiVersion: v2\nname: oven-driver\nversion: 1.0.0\n")
    (tmp_path / "templates").mkdir()
    return tmp_path


def rendered(monkeypatch: pytest.MonkeyPatch, folder: Path, *objects: dict[str, Any]) -> Chart:
    """A chart that a helm of ours renders; its arguments are in ``arguments``."""
    (folder / "rendered.yaml").write_text(yaml.safe_dump_all(objects))
    program = folder / "helm"
    program.write_text(f'#!/bin/sh\necho "$@" > {shlex.quote(str(folder))}/arguments\ncat "$3/rendered.yaml"\n')
    program.chmod(0o755)
    monkeypatch.setenv("HELM", str(program))
    [chart] = parse_charts([(folder, ())])
    return chart


@asynccontextmanager
async def cluster(*charts: str) -> AsyncIterator[tuple[Sandbox, ChartInstaller]]:
    async with Sandbox([], SandboxSettings(charts=charts, time_scale=10)) as sandbox:
        api = sandbox.control_plane.server.api
        yield sandbox, ChartInstaller(sandbox.client, sandbox.informers, sandbox.images, lambda: Capabilities.of(api))


def names(items: Sequence[tuple[str, Any]]) -> list[str]:
    return [body["metadata"]["name"] for _, body in items]


def test_definitions_come_first_and_hooks_by_weight() -> None:
    documents = [
        config_map("b"),
        OVEN,
        DEFINITION,
        hook("late", "post-install, post-upgrade", "5"),
        hook("early", "pre-install", "-5"),
        hook("second", "pre-install,pre-upgrade"),
        hook("first", "pre-install"),
        hook("farewell", "pre-delete", "2"),
        hook("last", "post-delete,pre-delete"),
        hook("check", "test"),
    ]
    plan = install_plan([("", body) for body in documents])

    assert names(plan.definitions) == ["ovens.kitchen.example"]
    assert names(plan.before) == ["early", "first", "second"]
    assert names(plan.objects) == ["b", "first"]
    assert names(plan.after) == ["late"]
    assert names(plan.before_deletion) == ["last", "farewell"]
    assert names(plan.after_deletion) == ["last"]


def test_a_folder_without_chart_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"is not a chart: it has no Chart\.yaml"):
        parse_charts([(tmp_path, ())])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"name: Upper", "is not a valid name of a release; correct it"),
        (b"version: 1", "has no name; correct it"),
        (b"", "has no name; correct it"),
        (b"[", r"Chart\.yaml cannot be read: line 1, column"),
        (b"\xff", r"Chart\.yaml cannot be read: byte 0 is not valid UTF-8"),
        (b"name: [x]", "is not a valid name of a release"),
    ],
)
def test_a_chart_without_a_valid_name_is_refused(tmp_path: Path, text: bytes, problem: str) -> None:
    (tmp_path / "Chart.yaml").write_bytes(text)

    with pytest.raises(ConfigurationError, match=problem):
        parse_charts([(tmp_path, ())])


def test_two_charts_of_one_name_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="has the name oven-driver, like"):
        parse_charts([(folder, ()), (folder, ())])


def test_missing_helm_is_reported_with_a_remedy() -> None:
    with pytest.raises(ConfigurationError, match="it is not in the PATH; install helm, or set HELM to its path"):
        find_helm({"PATH": "/nowhere"})
    with pytest.raises(ConfigurationError, match="HELM=/x/helm is not a program"):
        find_helm({"PATH": "/nowhere", "HELM": "/x/helm"})


async def test_objects_are_created_in_a_namespace_of_the_chart(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    scaler = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "scale"}}
    chart = rendered(monkeypatch, folder, hook("h", "pre-install"), OVEN, scaler, config_map("c"), DEFINITION)
    async with cluster("oven-driver") as (sandbox, installer):
        installed = await installer.install(chart)

        assert installed.count == 3
        assert installed.skipped == ("autoscaling/v2 HorizontalPodAutoscaler",)
        found = await sandbox.client.get(CONFIG_MAPS, "c", "oven-driver")
        assert found["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "Helm"
        assert found["metadata"]["annotations"]["meta.helm.sh/release-name"] == "oven-driver"
        await sandbox.client.get(CONFIG_MAPS, "h", "oven-driver")
        await sandbox.client.get(CUSTOM_RESOURCE_DEFINITIONS, "ovens.kitchen.example")
    words = (folder / "arguments").read_text().split()
    assert words[:5] == ["template", "oven-driver", str(folder), "--namespace", "oven-driver"]
    assert "resource.k8s.io/v1/ResourceClaim" in words[words.index("--api-versions") + 1].split(",")


async def test_an_unknown_kind_is_refused(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    chart = rendered(monkeypatch, folder, OVEN)
    async with cluster() as (_, installer):
        with pytest.raises(ConfigurationError, match=r"chart oven-driver.*has no kind Oven of kitchen\.example/v1"):
            await installer.install(chart)


@pytest.mark.processes
async def test_a_chart_is_ready_when_its_pods_are(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    chart = rendered(
        monkeypatch, folder, workload("DaemonSet", "d", command=SLEEP), workload("Deployment", "e", command=SLEEP)
    )
    async with cluster("oven-driver") as (_, installer):
        assert await installer.ready(await installer.install(chart), 60) == []


@pytest.mark.processes
async def test_workloads_without_a_known_image_are_named(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr("dra_kit.sandbox.charts._STUCK_SECONDS", 0.1)
    chart = rendered(monkeypatch, folder, workload("DaemonSet", "d"), workload("Deployment", "e", command=["no-oven"]))
    async with cluster("oven-driver") as (_, installer):
        installed = await installer.install(chart)
        await until(lambda: len(installer.pods(installed)) == 2)
        text = "\n".join(await installer.ready(installed, 20))

    assert "DaemonSet oven-driver/d has 0 of 1 pods that are ready" in text
    assert "container c: ErrImageNeverPull" in text
    assert "start the sandbox with --image kitchen/oven=DIR" in text


def work(kind: str, code: str) -> dict[str, Any]:
    """The spec of a pod or a job that runs Python code."""
    container = {"name": "c", "image": "x", "command": [sys.executable, "-c", code]}
    spec = {"restartPolicy": "Never", "containers": [container]}
    if kind == "Pod":
        return {"kind": kind, "spec": spec}
    return {"apiVersion": "batch/v1", "kind": kind, "spec": {"backoffLimit": 0, "template": {"spec": spec}}}


@pytest.mark.processes
@pytest.mark.parametrize("kind", ["Pod", "Job"])
async def test_a_hook_that_fails_is_named(monkeypatch: pytest.MonkeyPatch, folder: Path, kind: str) -> None:
    chart = rendered(monkeypatch, folder, hook("check", "pre-install", **work(kind, "raise SystemExit(1)")))
    async with cluster() as (_, installer):
        with pytest.raises(SandboxError, match=f"chart oven-driver: hook {kind} check has failed"):
            await installer.install(chart)


@pytest.mark.processes
@pytest.mark.parametrize("kind", ["Pod", "Job"])
async def test_a_hook_that_has_succeeded_is_deleted(monkeypatch: pytest.MonkeyPatch, folder: Path, kind: str) -> None:
    done = hook("check", "post-install", policy="hook-succeeded,before-hook-creation", **work(kind, ""))
    chart = rendered(monkeypatch, folder, done)
    async with cluster() as (sandbox, installer):
        await installer.install(chart)

        await until(lambda: not sandbox.informers.objects(PODS))


def changes_of(sandbox: Sandbox, *kinds: Resource) -> list[str]:
    """Return a list to which the names of objects are added: + when they are created, - when they are deleted."""
    found: list[str] = []

    def changed(change: ObjectChange) -> None:
        name = change.object["metadata"]["name"]
        if change.type in {"ADDED", "DELETED"} and name != "kube-root-ca.crt":
            found.append(f"{'+' if change.type == 'ADDED' else '-'}{name}")

    for kind in kinds:
        sandbox.informers.listen(kind, changed)
    return found


async def test_a_chart_is_removed_between_its_hooks(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    kept = config_map("kept", annotations={"helm.sh/resource-policy": "keep"})
    chart = rendered(
        monkeypatch, folder, DEFINITION, config_map("a"), config_map("b"), kept,
        hook("second", "pre-delete", "1", "hook-succeeded"), hook("first", "pre-delete"),
        hook("both", "pre-install,post-delete"), hook("last", "post-delete", "5"),
    )  # fmt: skip
    async with cluster() as (sandbox, installer):
        changes = changes_of(sandbox, CONFIG_MAPS)
        installed = await installer.install(chart)
        await until(lambda: len(changes) == 4)
        del changes[:]
        await installer.uninstall(installed)

        expected = ["+first", "+second", "-second", "-b", "-a", "-both", "+both", "+last"]
        await until(lambda: len(changes) >= len(expected))
        assert changes == expected
        await sandbox.client.get(CUSTOM_RESOURCE_DEFINITIONS, "ovens.kitchen.example")
        await installer.uninstall(installed)  # of a chart whose objects are gone already


@pytest.mark.processes
@pytest.mark.parametrize("policy", ["hook-failed", ""])
async def test_a_chart_whose_hook_fails_is_not_removed(
    monkeypatch: pytest.MonkeyPatch, folder: Path, policy: str
) -> None:
    failing = hook("check", "pre-delete", "1", policy, **work("Pod", "raise SystemExit(1)"))
    chart = rendered(monkeypatch, folder, config_map("a"), failing, hook("first", "pre-delete", "", "hook-succeeded"))
    async with cluster() as (sandbox, installer):
        installed = await installer.install(chart)
        with pytest.raises(SandboxError, match="chart oven-driver: hook Pod check has failed"):
            await installer.uninstall(installed)

        found = {item["metadata"]["name"] for item in (await sandbox.client.list(CONFIG_MAPS)).items}
        assert found - {"kube-root-ca.crt"} == {"a"}
        await until(lambda: bool(sandbox.informers.objects(PODS)) is not bool(policy))


async def test_a_certificate_gets_its_secret_and_webhooks_the_authority() -> None:
    authority = {
        "apiVersion": "cert-manager.io/v1",
        "kind": "Issuer",
        "metadata": {"name": "own"},
        "spec": {"selfSigned": {}},
    }
    certificate = {
        "apiVersion": "cert-manager.io/v1", "kind": "Certificate", "metadata": {"name": "oven"},
        "spec": {
            "secretName": "oven-tls", "dnsNames": ["oven.default.svc", "127.0.0.1"],
            "issuerRef": {"name": "own", "kind": "Issuer"},
        },
    }  # fmt: skip
    rule = {"apiGroups": ["x.example"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["x"]}
    webhook = {
        "name": "oven.example.com", "rules": [rule], "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "clientConfig": {"service": {"namespace": "default", "name": "oven"}},
    }  # fmt: skip
    async with cluster() as (sandbox, _):
        client = sandbox.client
        await serve_certificate_kinds(client)
        metadata = {"name": "oven", "annotations": {"cert-manager.io/inject-ca-from": "default/oven"}}
        await client.create(VALIDATING_WEBHOOK_CONFIGURATIONS, {"metadata": metadata, "webhooks": [webhook]})
        await client.create(CERTIFICATES, certificate, "default")

        def condition() -> dict[str, Any]:
            found = sandbox.informers.objects(CERTIFICATES).get(("default", "oven"), {})
            [first] = (found.get("status") or {}).get("conditions") or [{}]
            return dict(first)

        await until(lambda: condition().get("reason") == "IssuerNotFound")
        await client.create(ISSUERS, authority, "default")
        await until(lambda: condition().get("status") == "True")

        secret = await client.get(SECRETS, "oven-tls", "default")
        data = {name: base64.b64decode(text) for name, text in secret["data"].items()}
        assert secret["type"] == "kubernetes.io/tls"
        context = ssl.create_default_context(cadata=data["ca.crt"].decode())
        assert context.get_ca_certs()
        configurations = sandbox.informers.objects(VALIDATING_WEBHOOK_CONFIGURATIONS)

        def bundle() -> str:
            found = configurations.get(("", "oven"), {"webhooks": [webhook]})
            return str(found["webhooks"][0]["clientConfig"].get("caBundle", ""))

        await until(lambda: bundle() == secret["data"]["ca.crt"])


@pytest.mark.parametrize(
    ("values", "own", "kept"),
    [
        ("nfd: {enabled: false}", "", ["always", "undecided"]),
        ("nfd: {enabled: false}", "nfd: {enabled: true}", []),
        ("nfd: {enabled: true, other: 1}", "nfd: {enabled: false}", ["always", "undecided"]),
        ("", "", []),
    ],
)
def test_charts_that_the_values_switch_off_are_not_needed(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, values: str, own: str, kept: list[str]
) -> None:
    dependencies = [
        {"name": "discovery", "alias": "nfd", "condition": "none.enabled, nfd.enabled", "version": "1.0.0"},
        {"name": "always", "version": "1.0.0"},
        {"name": "undecided", "condition": "nothing.enabled", "version": "1.0.0"},
    ]
    about = {"apiVersion": "v2", "name": "oven-driver", "version": "1.0.0", "dependencies": dependencies}
    (folder / "Chart.yaml").write_text(yaml.safe_dump(about))
    (folder / "values.yaml").write_text(values)
    place = tmp_path_factory.mktemp("place")
    (place / "own.yaml").write_text(own)
    chart = Chart("oven-driver", folder, (place / "own.yaml",))

    assert copy_without_disabled_charts(chart, place / "copy") == bool(kept)
    if kept:
        copied = yaml.safe_load((place / "copy" / "Chart.yaml").read_text())
        assert [item["name"] for item in copied["dependencies"]] == kept
        assert (place / "copy" / "values.yaml").read_text() == values


async def test_helm_renders_a_chart_with_values(folder: Path) -> None:
    try:
        helm = rendering.find_helm()
    except NotFound as error:
        pytest.skip(f"charts are NOT rendered, because helm is missing: {error}")
    (folder / "templates" / "c.yaml").write_text(
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: c\n  namespace: {{ .Release.Namespace }}\n"
        'data:\n  a: {{ .Values.a | quote }}\n  v1: {{ .Capabilities.APIVersions.Has "resource.k8s.io/v1" | quote }}\n'
    )
    (folder / "values.yaml").write_text("a: default\n")
    (folder / "own.yaml").write_text("a: own\n")
    [chart] = parse_charts([(folder, [folder / "own.yaml"])])

    [(where, body)] = await render(chart, str(helm.path), Capabilities("v1.36.2", ["resource.k8s.io/v1"]))

    assert "oven-driver" in where
    assert body["metadata"]["namespace"] == "oven-driver"
    assert body["data"] == {"a": "own", "v1": "true"}
    (folder / "templates" / "c.yaml").write_text("{{ fail `no oven` }}")
    with pytest.raises(ConfigurationError, match=r"helm cannot render it: .*no oven"):
        await render(chart, str(helm.path), Capabilities("v1.36.2", []))


async def test_helm_renders_a_chart_without_the_charts_that_it_does_not_use(folder: Path) -> None:
    try:
        helm = rendering.find_helm()
    except NotFound as error:
        pytest.skip(f"charts are NOT rendered, because helm is missing: {error}")
    away = "dependencies: [{name: discovery, version: 1.0.0, repository: 'https://x.example', condition: nfd.enabled}]"
    with (folder / "Chart.yaml").open("a") as file:
        file.write(f"{away}\n")
    (folder / "templates" / "oven.yaml").write_text(yaml.safe_dump(config_map("oven")))
    (folder / "values.yaml").write_text("nfd: {enabled: false}\n")
    [chart] = parse_charts([(folder, ())])

    [(_, body)] = await render(chart, str(helm.path), Capabilities("v1.36.2", []))
    assert body["metadata"]["name"] == "oven"

    (folder / "values.yaml").write_text("nfd: {enabled: true}\n")
    with pytest.raises(ConfigurationError, match=f"discovery; run: helm dependency build {folder}"):
        await render(chart, str(helm.path), Capabilities("v1.36.2", []))
