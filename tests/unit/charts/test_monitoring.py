"""Scraping, alerts and the dashboard of the chart: off by default, and made of metrics that there are."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_kit.process.metrics.families import FAMILIES, Family
from tests.unit.charts.rendering import DEPLOYED, DRIVER, NAMESPACE, RELEASE, Helm, Manifests, Refused

HERE = Path(__file__).parent
PAGE = HERE.parents[2] / "docs" / "how-to" / "monitor.md"
ON = {"podMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}, "dashboard": {"enabled": True}}
OF_TARGETS = {"driver", "node", "pod", "namespace", "instance", "job", "le"}
OF_HOLDERS = {"exported_namespace", "exported_pod", "exported_container"}
"""Labels that every series has, by its target or by its kind."""
OF_PROCESSES = {"process_resident_memory_bytes"}


@pytest.fixture(scope="module")
def monitored(helm: Helm) -> Manifests:
    return helm.render({**DEPLOYED, "monitoring": ON})


def rules(manifests: Manifests) -> list[dict[str, Any]]:
    [group] = manifests.named("PrometheusRule")["spec"]["groups"]
    assert group["name"] == f"dra-driver {DRIVER}"
    return list(group["rules"])


def dashboard(manifests: Manifests) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(manifests.named("ConfigMap")["data"]["dra-driver.json"])
    return loaded


def expressions(manifests: Manifests) -> Iterator[str]:
    for rule in rules(manifests):
        yield rule["expr"]
    for panel in dashboard(manifests)["panels"]:
        for target in panel["targets"]:
            yield target["expr"]
    for variable in dashboard(manifests)["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]


def family_of(name: str) -> Family | None:
    """The metric that a query names; a number of a histogram belongs to that."""
    for family in FAMILIES:
        names = {family.shown_name}
        if family.kind == "histogram":
            names = {f"{family.name}_{part}" for part in ("bucket", "sum", "count")}
        if name in names:
            return family
    return None


def test_nothing_of_it_is_made_unless_it_is_asked_for(helm: Helm) -> None:
    kinds = helm.render(DEPLOYED).kinds()
    assert not kinds & {"PodMonitor", "ServiceMonitor", "PrometheusRule", "ConfigMap"}
    assert "pod-resources" not in json.dumps(helm.render(DEPLOYED).pod("node"))


def test_the_pods_of_all_roles_are_scraped_where_they_serve(helm: Helm) -> None:
    webhook = {"certificate": {"secretName": "cert"}}
    made = helm.render({**DEPLOYED, "monitoring": ON, "webhook": webhook})
    monitor = made.named("PodMonitor")
    selector = monitor["spec"]["selector"]["matchLabels"]
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    for kind, role in (("DaemonSet", "node"), ("Deployment", "controller"), ("Deployment", "webhook")):
        template = made.named(kind, f"{RELEASE}-{role}")["spec"]["template"]
        assert selector.items() <= template["metadata"]["labels"].items()
        assert endpoint["port"] in {port["name"] for port in template["spec"]["containers"][0]["ports"]}
    assert monitor["metadata"]["namespace"] == NAMESPACE


FORGED = {"driver": "other.example", "node": "node-9", "namespace": "kube-system", "pod": "victim", "job": "other"}


def scraped(endpoint: dict[str, Any], target: dict[str, str], labels: dict[str, str]) -> dict[str, str]:
    """The labels of a series that a pod exposes, by Prometheus' rules (scrape/target.go, model/relabel)."""
    own = {name: text for name, text in target.items() if not name.startswith("__")}
    for rule in endpoint["relabelings"]:
        own[rule["targetLabel"]] = ";".join(target[source] for source in rule["sourceLabels"])
    if endpoint["honorLabels"]:
        found = {**own, **labels}
    else:
        found = {**{f"exported_{name}" if name in own else name: text for name, text in labels.items()}, **own}
    for rule in endpoint["metricRelabelings"]:
        found = {name: text for name, text in found.items() if not re.fullmatch(rule["regex"], name)}
    return found


@pytest.mark.parametrize("monitor", ["podMonitor", "serviceMonitor"])
def test_a_pod_cannot_report_for_another_one(helm: Helm, monitor: str) -> None:
    made = helm.render({**DEPLOYED, "monitoring": {monitor: {"enabled": True}}})
    spec = made.named(monitor[0].upper() + monitor[1:])["spec"]
    [endpoint] = spec.get("podMetricsEndpoints") or spec["endpoints"]
    target = {
        "namespace": NAMESPACE,
        "pod": "node-xyz",
        "container": "node",
        "job": "dra",
        "__meta_kubernetes_pod_node_name": "node-1",
        "__meta_kubernetes_pod_label_app_kubernetes_io_name": DRIVER,
    }
    series = scraped(endpoint, target, {**FORGED, "claim": "lunch"})
    assert {name: series[name] for name in FORGED} == {
        "driver": DRIVER, "node": "node-1", "namespace": NAMESPACE, "pod": "node-xyz", "job": "dra",
    }  # fmt: skip
    assert (series["exported_namespace"], series["exported_pod"]) == ("kube-system", "victim")
    assert not {"exported_driver", "exported_node"} & series.keys()


def test_the_table_of_devices_shows_who_has_them_and_not_the_pod_that_is_scraped(monitored: Manifests) -> None:
    [panel] = [item for item in dashboard(monitored)["panels"] if item["title"] == "Who has which device"]
    [grouped] = re.findall(r"by \(([^)]*)\)", panel["targets"][0]["expr"])
    assert {"exported_namespace", "exported_pod", "exported_container"} <= set(grouped.split(", "))
    assert not {"namespace", "pod", "container"} & set(grouped.split(", "))


def test_the_scrape_configuration_of_the_page_believes_no_pod() -> None:
    [block] = [
        text for text in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL) if "scrape_configs" in text
    ]
    [config] = yaml.safe_load(block)["scrape_configs"]
    endpoint = {
        "honorLabels": config.get("honor_labels", False),
        "relabelings": [
            {"targetLabel": rule["target_label"], "sourceLabels": rule["source_labels"]}
            for rule in config["relabel_configs"]
            if "target_label" in rule
        ],
        "metricRelabelings": config["metric_relabel_configs"],
    }
    target = {
        "job": "dra",
        "__meta_kubernetes_namespace": NAMESPACE,
        "__meta_kubernetes_pod_name": "node-xyz",
        "__meta_kubernetes_pod_container_name": "node",
        "__meta_kubernetes_pod_node_name": "node-1",
        "__meta_kubernetes_pod_label_app_kubernetes_io_name": DRIVER,
    }
    series = scraped(endpoint, target, FORGED)
    assert series == {
        "driver": DRIVER,
        "node": "node-1",
        "namespace": NAMESPACE,
        "pod": "node-xyz",
        "container": "node",
        "job": "dra",
        "exported_namespace": "kube-system",
        "exported_pod": "victim",
        "exported_job": "other",
    }


def test_a_service_monitor_asks_the_same_pods_in_the_same_way(helm: Helm) -> None:
    by_pods = helm.render({**DEPLOYED, "monitoring": {"podMonitor": {"enabled": True}}}).named("PodMonitor")["spec"]
    made = helm.render({**DEPLOYED, "monitoring": {"serviceMonitor": {"enabled": True}}})
    monitor, service = made.named("ServiceMonitor")["spec"], made.named("Service", f"{RELEASE}-metrics")
    [endpoint], [port] = monitor["endpoints"], service["spec"]["ports"]
    assert {**endpoint, "port": port["targetPort"]} == by_pods["podMetricsEndpoints"][0]
    assert endpoint["port"] == port["name"]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert service["spec"]["selector"] == by_pods["selector"]["matchLabels"]
    assert service["spec"]["clusterIP"] == "None"  # a list of addresses, each of which is asked


def test_no_pod_is_asked_twice(helm: Helm) -> None:
    both = {"podMonitor": {"enabled": True}, "serviceMonitor": {"enabled": True}}
    with pytest.raises(Refused, match="do not go together"):
        helm.render({**DEPLOYED, "monitoring": both})


def test_every_metric_that_is_named_is_told_by_a_role(monitored: Manifests) -> None:
    found = list(expressions(monitored))
    assert len(found) > 20
    for expression in found:
        names = re.findall(r"\b(?:dra|process|leader)_\w+", expression)
        assert names, expression
        for name in names:
            assert family_of(name) is not None or name in OF_PROCESSES, f"{name} in {expression}"


def test_every_label_that_is_named_is_one_of_its_metric(monitored: Manifests) -> None:
    for expression in expressions(monitored):
        for name, selectors in re.findall(r"\b((?:dra|leader)_\w+)\{([^}]*)\}", expression):
            family = family_of(name)
            assert family is not None
            labels = {selector.split("=")[0].rstrip("!~ ").strip() for selector in selectors.split(",")}
            assert labels <= OF_TARGETS | set(family.labels), expression
        named = (family_of(name) for name in re.findall(r"\b(?:dra|leader)_\w+", expression))
        known = {label for family in named if family for label in family.labels}
        for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression):
            assert {label.strip() for label in group.split(",")} <= OF_TARGETS | OF_HOLDERS | known, expression


def test_alerts_are_of_this_driver_alone_and_the_page_explains_them(monitored: Manifests) -> None:
    explained = set(re.findall(r"^\| `(DRADriver\w+)` \|", PAGE.read_text(), re.MULTILINE))
    assert {rule["alert"] for rule in rules(monitored)} == explained
    for rule in rules(monitored):
        selectors = re.findall(r"\b(?:dra|leader)_\w+\{([^}]*)\}", rule["expr"])
        assert selectors
        assert all(f'driver="{DRIVER}"' in selector for selector in selectors)
        assert set(rule["annotations"]) == {"summary", "description"}
        assert rule["labels"]["severity"] in {"warning", "critical"}


def test_alerts_are_raised_when_they_should_and_not_before(monitored: Manifests, tmp_path: Path) -> None:
    promtool = os.environ.get("PROMTOOL") or shutil.which("promtool")
    if promtool is None:
        pytest.skip(
            "alerts are NOT played through: promtool is neither on the PATH nor at $PROMTOOL (package prometheus)"
        )
    (tmp_path / "alerts.yaml").write_text(yaml.safe_dump(monitored.named("PrometheusRule")["spec"]))
    shutil.copy(HERE / "alerts_test.yaml", tmp_path)
    for command in (["check", "rules", "alerts.yaml"], ["test", "rules", "alerts_test.yaml"]):
        played = subprocess.run(
            [promtool, *command], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
        )
        assert played.returncode == 0, played.stdout + played.stderr


def test_panels_lie_beside_each_other_and_have_a_legend(monitored: Manifests) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard(monitored)["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
        if panel["type"] == "timeseries":
            assert all(target["legendFormat"] for target in panel["targets"])


def test_the_kubelets_pod_resources_are_mounted_to_be_read_where_that_is_asked_for(helm: Helm) -> None:
    made = helm.render({**DEPLOYED, "node": {"podResources": True, "kubeletDir": "/data/kubelet"}})
    [mount] = [item for item in made.container("node")["volumeMounts"] if item["name"] == "pod-resources"]
    [volume] = [item for item in made.pod("node")["volumes"] if item["name"] == "pod-resources"]
    assert (mount["mountPath"], mount["readOnly"]) == ("/data/kubelet/pod-resources", True)
    assert volume["hostPath"] == {"path": "/data/kubelet/pod-resources", "type": "Directory"}
