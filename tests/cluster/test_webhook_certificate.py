"""The webhook's certificate by helm, on a real control plane: three ways to one, and each after each other."""

from __future__ import annotations

import base64
import json
import secrets
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from dra_kit.admission.certificate_authority import renew_server_certificate
from tests.cluster.access import CHART
from tests.cluster.deployed import deployed
from tests.cluster.find import REPOSITORY
from tests.cluster.jobs import NOWHERE, JobRunner, account_kubeconfig
from tests.cluster.manifests import tls_secret
from tests.cluster.pizza import PROJECT
from tests.cluster.plane import Plane, PlaneError
from tests.cluster.processes import DRA_KIT, Running, running
from tests.cluster.test_deployed import refusal
from tests.life.switches import until

FORMER = REPOSITORY / "tests" / "data" / "former-chart" / "webhook-rbac.yaml"
NAME = "kiln"
SERVICE = f"{NAME}-webhook"
SELF_MADE = f"{SERVICE}-self-made"
JOB = f"{SERVICE}-certificate"
pytestmark = pytest.mark.any_release  # helm runs its hooks itself


@dataclass
class Kiln:
    """A release of the chart whose pods run nowhere, and whose Job is run by a local process."""

    plane: Plane
    namespace: str
    jobs: JobRunner
    authority: trustme.CA

    @property
    def driver(self) -> str:
        """A name for each release: configurations belong to no namespace."""
        return f"{self.namespace}.example"

    def values(self, certificate: Mapping[str, Any], **webhook: Any) -> dict[str, Any]:
        """Of a release whose pods run nowhere."""
        where = {"nodeSelector": NOWHERE}
        job = {"job": where} if certificate.get("selfMade") else {}
        return {
            "driverName": self.driver,
            "image": {"repository": "images.example/kiln", "tag": "1"},
            "target": "kiln.driver:driver",
            "node": where,
            "controller": where,
            "drainGuard": {"enabled": False},
            "webhook": {**where, **webhook, "certificate": {**certificate, **job}},
        }

    def helm(self, *arguments: object, values: Mapping[str, Any] | None = None) -> str:
        """Run helm, and the Jobs of its hooks."""
        command = [self.plane.binaries / "helm", *arguments, "--namespace", self.namespace]
        command += ["--kubeconfig", self.plane.kubeconfig, *(["--values", "-"] if values is not None else [])]
        with self.jobs.running():
            done = subprocess.run(
                list(map(str, command)), input=json.dumps(values), capture_output=True, text=True, check=False,
                timeout=300,
            )  # fmt: skip
        if done.returncode:
            raise PlaneError(f"helm: {done.stderr.strip()}\n{self.jobs.outputs}")
        return done.stdout

    def upgrade(self, certificate: Mapping[str, Any], *, chart: Path = CHART, **webhook: Any) -> None:
        """Install the release or change its certificate."""
        self.helm("upgrade", "--install", NAME, chart, values=self.values(certificate, **webhook))

    def rollback(self) -> None:
        """Go back to the revision before."""
        self.helm("rollback", NAME)

    def store(self, name: str) -> dict[str, str]:
        """Create the administrator's Secret as the documentation does; its data."""
        made = self.authority.issue_cert(f"{SERVICE}.{self.namespace}.svc")
        cert, key = self.plane.directory / "tls.crt", self.plane.directory / "tls.key"
        cert.write_bytes(b"".join(part.bytes() for part in made.cert_chain_pems))
        key.write_bytes(made.private_key_pem.bytes())
        place = ("--namespace", self.namespace)
        self.plane.kubectl("create", "secret", "tls", name, f"--cert={cert}", f"--key={key}", *place)
        return self.data(name)

    def secret(self, name: str) -> Any:
        """A Secret; None where it does not exist."""
        found = self.plane.kubectl(
            "get", "secret", name, "--namespace", self.namespace, "--ignore-not-found", "-o", "json"
        ).stdout
        return json.loads(found) if found else None

    def data(self, name: str) -> dict[str, str]:
        """What a Secret has."""
        found: dict[str, str] = self.secret(name)["data"]
        return found

    def bundle(self) -> bytes:
        """What the webhooks trust: all of them the same."""
        found = self.plane.get("validatingwebhookconfiguration", f"opaque-config.{self.driver}")["webhooks"]
        [bundle] = {each["clientConfig"].get("caBundle", "") for each in found}
        assert {each["failurePolicy"] for each in found} == {"Fail"}
        return base64.b64decode(bundle)

    def self_made_authority(self) -> bytes:
        """The authorities in the self-made Secret."""
        return base64.b64decode(self.data(SELF_MADE)["ca.crt"])

    def left_of_job(self) -> list[str]:
        """What there is of the Job and its rights."""
        kinds = "jobs,pods,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings"
        names = self.plane.kubectl("get", kinds, "--namespace", self.namespace, "-o", "name").stdout.split()
        return [name for name in names if "webhook-certificate" in name]

    @contextmanager
    def webhook(self, directory: Path) -> Iterator[Running]:
        """A replica of the webhook, as a process with the token of its account."""
        kubeconfig = account_kubeconfig(self.plane, self.namespace, SERVICE)
        command = [
            DRA_KIT, "webhook", PROJECT, "--own-certificate", SERVICE, "--namespace", self.namespace,
            "--host", "127.0.0.1", "--port", "0", "--kubeconfig", kubeconfig, "--log-format", "json",
        ]  # fmt: skip
        with running(command, log=directory / f"{secrets.token_hex(3)}.log") as process:
            yield process

    def accepts(self, process: Running) -> bool:
        """Whether what the API server trusts is what a replica serves with."""
        found = [json.loads(line) for line in process.lines() if "serving admission reviews" in line]
        if not found:
            return False
        trusting = ssl.create_default_context(cadata=self.bundle().decode())
        try:
            server_name = f"{SERVICE}.{self.namespace}.svc"
            with (
                socket.create_connection(("127.0.0.1", found[-1]["port"])) as raw,
                trusting.wrap_socket(raw, server_hostname=server_name),
            ):
                return True
        except (OSError, ssl.SSLError):
            return False


@pytest.fixture
def kiln(plane: Plane) -> Iterator[Kiln]:
    if plane.tool is None:
        pytest.skip(f"this test needs the controllers of Kubernetes; found {plane.why}")
    namespace = f"{NAME}-{secrets.token_hex(3)}"
    plane.kubectl("create", "namespace", namespace)
    made = Kiln(plane, namespace, JobRunner(plane, namespace, "webhook-certificate"), trustme.CA())
    try:
        yield made
    finally:
        made.helm("uninstall", NAME, "--ignore-not-found", "--no-hooks")
        plane.kubectl("delete", "namespace", namespace, "--wait=false")


def own(kiln: Kiln, secret: str) -> dict[str, Any]:
    return {"secretName": secret, "caBundle": kiln.authority.cert_pem.bytes().decode()}


def test_from_self_made_to_an_own_one_and_back_keeps_the_administrators_secret(kiln: Kiln) -> None:
    kiln.upgrade({"selfMade": True})
    assert kiln.bundle() == kiln.self_made_authority()
    assert kiln.left_of_job() == []
    given = kiln.store(SERVICE)  # the name that the Service has, too

    kiln.upgrade(own(kiln, SERVICE))
    assert kiln.data(SERVICE) == given
    assert kiln.bundle() == kiln.authority.cert_pem.bytes()
    assert kiln.secret(SELF_MADE) is None

    kiln.rollback()
    assert kiln.data(SERVICE) == given
    assert kiln.bundle() == kiln.self_made_authority()
    assert kiln.left_of_job() == []

    kiln.helm("uninstall", NAME)
    assert kiln.data(SERVICE) == given
    left = kiln.plane.kubectl("get", "secrets,roles,rolebindings", "--namespace", kiln.namespace, "-o", "name").stdout
    assert left.split() == [f"secret/{SERVICE}"]


@pytest.mark.long
def test_every_way_after_every_other(kiln: Kiln) -> None:
    ways: Mapping[str, Callable[[], None]] = {
        "self-made": lambda: kiln.upgrade({"selfMade": True}),
        "own": lambda: kiln.upgrade(own(kiln, SERVICE)),
        "cert-manager": lambda: kiln.upgrade(
            {"secretName": "issued"}, configurationAnnotations={"cert-manager.io/inject-ca-from": "kitchen/issued"}
        ),
    }
    given = {name: kiln.store(name) for name in (SERVICE, "issued")}

    def holds(way: str) -> None:
        assert {name: kiln.data(name) for name in given} == given, way
        assert (kiln.secret(SELF_MADE) is not None) == (way == "self-made"), way
        if way == "self-made":
            assert kiln.bundle() == kiln.self_made_authority()
        if way == "own":
            assert kiln.bundle() == kiln.authority.cert_pem.bytes()
        assert kiln.left_of_job() == [], way

    for before in ways:
        for after in ways:
            if before != after:
                ways[before]()
                holds(before)
                ways[after]()
                holds(after)
                kiln.rollback()
                holds(before)


@pytest.fixture(scope="module")
def former_chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart of before: the webhook wrote the configuration itself, and its Secret had the Service's name."""
    chart = tmp_path_factory.mktemp("former") / "dra-driver"
    shutil.copytree(CHART, chart)
    shutil.copy(FORMER, chart / "templates" / "webhook-rbac.yaml")
    (chart / "templates" / "webhook-certificate.yaml").unlink()
    values = yaml.safe_load((chart / "values.yaml").read_text())
    del values["webhook"]["certificate"]["job"]
    (chart / "values.yaml").write_text(yaml.safe_dump(values))
    return chart


def install_former(kiln: Kiln, chart: Path) -> None:
    """Install it, and do what its webhook did."""
    values = kiln.values({"selfMade": True})
    del values["webhook"]["certificate"]["job"]
    kiln.helm("upgrade", "--install", NAME, chart, values=values)
    made = renew_server_certificate(None, [f"{SERVICE}.{kiln.namespace}.svc"], datetime.now(UTC))
    assert made is not None
    data = {"ca.crt": made.authorities, "ca.key": made.authority_key, "tls.crt": made.cert, "tls.key": made.key}
    text = {key: value.decode() for key, value in data.items()}
    place = ("--namespace", kiln.namespace)
    kiln.plane.kubectl("patch", "secret", SERVICE, *place, "--patch", json.dumps({"stringData": text}))
    plurals = ("resourceclaims", "resourceclaimtemplates", "deviceclasses")
    names = [f"{plural}.opaque-config.{kiln.driver}" for plural in plurals]
    bundle = base64.b64encode(made.authorities).decode()
    patch = {"webhooks": [{"name": name, "clientConfig": {"caBundle": bundle}} for name in names]}
    kiln.plane.kubectl(
        "patch", "validatingwebhookconfiguration", f"opaque-config.{kiln.driver}", "--patch", json.dumps(patch)
    )


@pytest.mark.long
def test_an_upgrade_from_the_former_chart_leaves_a_webhook_that_is_trusted(kiln: Kiln, former_chart: Path) -> None:
    install_former(kiln, former_chart)

    kiln.upgrade({"selfMade": True})

    assert kiln.bundle() == kiln.self_made_authority()
    assert kiln.secret(SERVICE) is None
    assert kiln.left_of_job() == []


def test_an_upgrade_from_the_former_chart_keeps_a_secret_that_an_administrator_put_in_its_place(
    kiln: Kiln, former_chart: Path
) -> None:
    install_former(kiln, former_chart)
    place = ("--namespace", kiln.namespace)
    kiln.plane.kubectl("delete", "secret", SERVICE, *place)
    given = kiln.store(SERVICE)
    bundle = kiln.plane.directory / "ca.crt"
    bundle.write_bytes(kiln.authority.cert_pem.bytes())

    kiln.helm(
        "upgrade", NAME, CHART, "--reuse-values", "--set", "webhook.certificate.selfMade=false",
        "--set", f"webhook.certificate.secretName={SERVICE}", "--set-file", f"webhook.certificate.caBundle={bundle}",
    )  # fmt: skip

    assert kiln.data(SERVICE) == given
    kiln.upgrade(own(kiln, SERVICE))
    assert kiln.data(SERVICE) == given


@pytest.mark.long
def test_a_deleted_secret_comes_back_and_what_is_served_stays_trusted(kiln: Kiln, tmp_path: Path) -> None:
    kiln.upgrade({"selfMade": True})
    place = ("--namespace", kiln.namespace)
    with kiln.webhook(tmp_path) as first:
        first.wait_until("the replica is trusted", lambda: kiln.accepts(first))
        before = kiln.data(SELF_MADE)
        kiln.plane.kubectl("delete", "secret", SELF_MADE, *place)
        with kiln.webhook(tmp_path) as second:
            second.wait_until("a new replica serves", lambda: kiln.accepts(second))
            assert kiln.data(SELF_MADE) == before
            assert kiln.accepts(first)
    # the last replica that stops leaves it behind
    assert kiln.data(SELF_MADE) == before


@pytest.mark.long
def test_a_replica_without_any_copy_waits_for_helm_upgrade(kiln: Kiln, tmp_path: Path) -> None:
    kiln.upgrade({"selfMade": True})
    kiln.plane.kubectl("delete", "secret", SELF_MADE, "--namespace", kiln.namespace)
    with kiln.webhook(tmp_path) as replica:
        replica.wait_until("it waits", lambda: "waiting for the certificate" in replica.log.read_text())
        assert "run helm upgrade" in replica.log.read_text()
        kiln.upgrade({"selfMade": True})
        replica.wait_until("it serves", lambda: kiln.accepts(replica))


SPY = """[{{"op": "add", "path": "/webhooks/-", "value": {{
  "name": "spy.{configuration}", "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Ignore",
  "clientConfig": {{"url": "https://127.0.0.1:28443/"}},
  "rules": [{{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["secrets"]}}]}}}}]"""


def test_no_account_of_the_release_reaches_beyond_its_own_objects(kiln: Kiln) -> None:
    kiln.upgrade({"selfMade": True})
    attack_configuration(kiln)
    attack_secret(kiln)


def attack_configuration(kiln: Kiln) -> None:
    """Have the API server send Secrets to a webhook of the attacker."""
    configuration = f"opaque-config.{kiln.driver}"
    accounts = kiln.plane.get("serviceaccounts", "--namespace", kiln.namespace)["items"]
    names = [item["metadata"]["name"] for item in accounts]

    assert sorted(names) == ["default", *(f"{NAME}-{role}" for role in ("controller", "node", "webhook"))]
    for name in names:
        attacker = f"system:serviceaccount:{kiln.namespace}:{name}"
        answer = kiln.plane.kubectl(
            "patch", "validatingwebhookconfiguration", configuration, "--as", attacker, "--type=json",
            "--patch", SPY.format(configuration=configuration), check=False,
        )  # fmt: skip
        assert "is forbidden" in answer.stderr, name


def attack_secret(kiln: Kiln) -> None:
    """Create a Secret that gets the token of another account."""
    kiln.plane.kubectl("delete", "secret", SELF_MADE, "--namespace", kiln.namespace)

    def answer(name: str, kind: str, *command: str) -> str:
        metadata = {"name": name, "annotations": {"kubernetes.io/service-account.name": f"{NAME}-controller"}}
        body = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": kind}
        attacker = f"system:serviceaccount:{kiln.namespace}:{SERVICE}"
        place = ("--as", attacker, "--namespace", kiln.namespace, "-f", "-")
        return kiln.plane.kubectl(*command, *place, stdin=json.dumps(body), check=False).stderr

    apply = ("apply", "--server-side", "--field-manager=me")
    token = "kubernetes.io/service-account-token"
    until("the policy is in force", lambda: "of type Opaque" in answer(SELF_MADE, token, *apply))
    assert "is forbidden" in answer(SELF_MADE, "Opaque", "create")
    assert "is forbidden" in answer("other", "Opaque", *apply)
    assert answer(SELF_MADE, "Opaque", *apply) == ""


@pytest.mark.long
def test_kubectl_apply_of_what_helm_renders_works_and_works_again(kiln: Kiln) -> None:
    def apply(tag: str) -> None:
        values = kiln.values({"selfMade": True})
        values["image"]["tag"] = tag
        rendered = kiln.helm("template", NAME, CHART, values=values)
        with kiln.jobs.running():
            runs = len(kiln.jobs.outputs)
            kiln.plane.kubectl("apply", "--namespace", kiln.namespace, "-f", "-", stdin=rendered)
            until("the Job has run", lambda: len(kiln.jobs.outputs) > runs)
            # its account keeps no rights, though no hook deletes it
            until("its bindings are gone", lambda: not [one for one in kiln.left_of_job() if "binding" in one])

    try:
        apply("1")
        before = kiln.bundle()
        assert before == kiln.self_made_authority()
        apply("2")
        until("the Jobs are gone", lambda: not [one for one in kiln.left_of_job() if one.startswith("job")])
        apply("2")
        assert kiln.bundle() == before
    finally:
        rendered = kiln.helm("template", NAME, CHART, values=kiln.values({"selfMade": True}))
        kiln.plane.kubectl("delete", "--ignore-not-found", "-f", "-", stdin=rendered)


@pytest.mark.long
def test_on_a_node_bad_config_is_refused_after_each_change(node_plane: Plane, pizza_image: str) -> None:
    with deployed(node_plane, pizza_image, "certified.pizza.example") as driver:
        release, place = driver.release, ("--namespace", driver.release.namespace)
        service = f"{release.name}-webhook"
        authority = trustme.CA()

        def change(certificate: Mapping[str, Any]) -> None:
            release.apply({"webhook": {**release.values["controller"], "certificate": certificate, "replicas": 2}})

        def refuses() -> None:
            release.rolled_out("deployment", "webhook")
            bad = 'extra_toppings[0]: "gravel"'
            until("good config is taken", lambda: not refusal(node_plane, driver.name, "basil"))
            until("bad config is refused", lambda: bad in refusal(node_plane, driver.name, "gravel"))

        change({"selfMade": True})
        refuses()

        made = authority.issue_cert(f"{service}.{release.namespace}.svc")
        node_plane.create(tls_secret(service, release.namespace, made))
        change({"secretName": service, "caBundle": authority.cert_pem.bytes().decode()})
        refuses()
        release.helm("rollback", release.name)
        refuses()
        node_plane.kubectl("get", "secret", service, *place)

        node_plane.kubectl("delete", "secret", f"{service}-self-made", *place)
        node_plane.kubectl("rollout", "restart", f"deployment/{service}", *place)
        refuses()
        node_plane.kubectl("delete", "secret", f"{service}-self-made", *place)
        selector = f"app.kubernetes.io/instance={release.name},app.kubernetes.io/component=webhook"
        node_plane.kubectl("delete", "pods", "--selector", selector, *place)
        refuses()
