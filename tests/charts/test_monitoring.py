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

from dra_kit.process.metrics import FAMILIES, MetricDescription
from tests.charts.rendering import ALL_ROLES, CHART, DEPLOYED, DRIVER, NAMESPACE, RELEASE, Helm, Manifests, Refused

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "how-to" / "monitor.md"
ON = {"podMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}, "dashboard": {"enabled": True}}
OF_TARGETS = {"driver", "node", "pod", "namespace", "instance", "job", "le"}
OF_STATE_METRICS = {"daemonset", "deployment"}
OF_HOLDERS = {"exported_namespace", "exported_pod", "exported_container"}
"""Labels that every series has, by its target or by its kind."""
OF_PROCESSES = {"process_resident_memory_bytes"}
TESTS = (HERE / "alerts_test.yaml", HERE / "alerts_hours_test.yaml")
CASES = HERE.parents[0] / "data" / "alerts"
"""Tests of promtool from elsewhere: what an administrator wanted, unchanged."""
NAMESPACED = re.compile(r"\b(?:kube_(?:daemonset|deployment)_\w+|up)\{([^}]*)\}")


@pytest.fixture(scope="module")
def monitored(helm: Helm) -> Manifests:
    return helm.render({**ALL_ROLES, "monitoring": ON})


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


def family_of(name: str) -> MetricDescription | None:
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


def test_the_pods_of_all_roles_are_scraped_where_they_serve(monitored: Manifests) -> None:
    monitor = monitored.named("PodMonitor")
    selector = monitor["spec"]["selector"]["matchLabels"]
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    for kind, role in (("DaemonSet", "node"), ("Deployment", "controller"), ("Deployment", "webhook")):
        template = monitored.named(kind, f"{RELEASE}-{role}")["spec"]["template"]
        assert selector.items() <= template["metadata"]["labels"].items()
        assert endpoint["port"] in {port["name"] for port in template["spec"]["containers"][0]["ports"]}
    assert monitor["metadata"]["namespace"] == NAMESPACE


POD = {
    "job": "dra",
    "__meta_kubernetes_pod_node_name": "node-1",
    "__meta_kubernetes_pod_label_app_kubernetes_io_name": DRIVER,
}
"""What Prometheus knows of a pod's target."""
TRUE = {"driver": DRIVER, "node": "node-1", "namespace": NAMESPACE, "pod": "node-xyz", "job": "dra"}
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
    target = {"namespace": NAMESPACE, "pod": "node-xyz", "container": "node", **POD}
    series = scraped(endpoint, target, {**FORGED, "claim": "lunch"})
    assert {name: series[name] for name in FORGED} == TRUE
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
        "__meta_kubernetes_namespace": NAMESPACE,
        "__meta_kubernetes_pod_name": "node-xyz",
        "__meta_kubernetes_pod_container_name": "node",
        **POD,
    }
    series = scraped(endpoint, target, FORGED)
    assert series == {
        **TRUE,
        "container": "node",
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
    with pytest.raises(Refused, match="cannot be combined"):
        helm.render({**DEPLOYED, "monitoring": both})


def test_every_metric_in_an_expression_is_one_of_a_role(monitored: Manifests) -> None:
    found = list(expressions(monitored))
    assert len(found) > 20
    for expression in found:
        names = re.findall(r"\b(?:dra|process|leader)_\w+", expression)
        assert names or NAMESPACED.search(expression), expression
        for name in names:
            assert family_of(name) is not None or name in OF_PROCESSES, f"{name} in {expression}"


def test_every_label_that_is_named_is_one_of_its_metric(monitored: Manifests) -> None:
    for expression in expressions(monitored):
        for name, selectors in re.findall(r"\b((?:dra|leader)_\w+)\{([^}]*)\}", expression):
            family = family_of(name)
            assert family is not None
            labels = {re.split("[=!]", selector)[0].strip() for selector in selectors.split(",")}
            assert labels <= OF_TARGETS | set(family.labels), expression
        named = (family_of(name) for name in re.findall(r"\b(?:dra|leader)_\w+", expression))
        known = {label for family in named if family for label in family.labels}
        for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression):
            labels = {label.strip() for label in group.split(",")} - {""}
            assert labels <= OF_TARGETS | OF_STATE_METRICS | OF_HOLDERS | known, expression


def test_alerts_are_about_this_driver_and_release_only(monitored: Manifests) -> None:
    for rule in rules(monitored):
        selectors = re.findall(r"\b(?:dra|leader)_\w+\{([^}]*)\}", rule["expr"])
        assert all(f'driver="{DRIVER}"' in selector for selector in selectors)
        release = NAMESPACED.findall(rule["expr"])
        assert all(f'namespace="{NAMESPACE}"' in selector and f"{RELEASE}-" in selector for selector in release)
        assert selectors or release
        assert set(rule["annotations"]) == {"summary", "description"}
        assert rule["labels"]["severity"] in {"warning", "critical"}
    assert "@" not in json.dumps(rules(monitored)), "a placeholder is not replaced"


def test_the_page_has_a_line_for_each_alert(monitored: Manifests) -> None:
    lines = re.findall(r"^\| `(DRADriver\w+)` \| ([^|]+) \| ([^|]+) \|$", PAGE.read_text(), re.MULTILINE)
    assert {rule["alert"] for rule in rules(monitored)} == {name for name, _, _ in lines}
    assert len(lines) == len({name for name, _, _ in lines})
    assert all(len(means.split()) > 3 and len(first.split()) > 1 for _, means, first in lines)


def test_each_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not(monitored: Manifests) -> None:
    tests = [test for file in TESTS for test in yaml.safe_load(file.read_text())["tests"]]
    expected = [(item["alertname"], bool(item["exp_alerts"])) for test in tests for item in test["alert_rule_test"]]
    for rule in rules(monitored):
        assert (rule["alert"], True) in expected
        assert (rule["alert"], False) in expected


@pytest.mark.parametrize(
    ("values", "left"),
    [
        (DEPLOYED, {"DRADriverWebhookDown", "DRADriverCertificateExpires"}),
        (ALL_ROLES, set()),
        (
            {**ALL_ROLES, "controller": {"enabled": False}},
            {"DRADriverNoLeader", "DRADriverClusterPoolsNotPublished"},
        ),
        (
            {**ALL_ROLES, "node": {"enabled": False}},
            {
                "DRADriverNotRegistered",
                "DRADriverRolloutStuck",
                "DRADriverPrepareFails",
                "DRADriverDevicesUnhealthy",
                "DRADriverSlicesNotPublished",
                "DRADriverEffectNotUndone",
                "DRADriverStateCorrupt",
                "DRADriverNodeLabelMissing",
                "DRADriverRuntimeNotConnected",
            },
        ),
        ({**ALL_ROLES, "node": {"updateStrategy": {"type": "OnDelete"}}}, {"DRADriverRolloutStuck"}),
        ({**DEPLOYED, "image": {"repository": ""}}, set()),
    ],
)
def test_a_role_that_values_switch_off_has_no_alert(helm: Helm, values: dict[str, Any], left: set[str]) -> None:
    every = {
        rule["alert"] for rule in yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())["groups"][0]["rules"]
    }
    made = helm.render({**values, "monitoring": {"prometheusRule": {"enabled": True}}})
    assert {rule["alert"] for rule in rules(made)} == every - left


@pytest.mark.parametrize("tests", TESTS, ids=lambda file: file.stem)
def test_alerts_fire_when_they_should_and_not_before(tests: Path, monitored: Manifests, tmp_path: Path) -> None:
    play(monitored, tests, tmp_path)


@pytest.mark.parametrize("case", sorted(path.name for path in CASES.iterdir()))
def test_a_case_of_an_administrator_raises_the_alert_that_was_wanted(case: str, helm: Helm, tmp_path: Path) -> None:
    driver = re.findall(r'driver="([^"]+)"', (CASES / case).read_text())[0]
    made = helm.render({**ALL_ROLES, "driverName": driver, "monitoring": ON})
    if case == "gone.yaml":  # it expects alerts without annotations
        for rule in made.named("PrometheusRule")["spec"]["groups"][0]["rules"]:
            del rule["annotations"]
    play(made, CASES / case, tmp_path)


def play(manifests: Manifests, tests: Path, folder: Path) -> None:
    """Let promtool check the rules and play tests of them, which name the file of the rules as they like."""
    [name] = yaml.safe_load(tests.read_text())["rule_files"]
    (folder / name).write_text(yaml.safe_dump(manifests.named("PrometheusRule")["spec"]))
    shutil.copy(tests, folder)
    promtool_says("check", "rules", name, folder=folder)
    promtool_says("test", "rules", tests.name, folder=folder)


def promtool_says(*words: str, folder: Path) -> None:
    """Let promtool find nothing wrong; skip the test where there is none."""
    promtool = os.environ.get("PROMTOOL") or shutil.which("promtool")
    if promtool is None:
        pytest.skip("alerts are NOT tested: promtool is neither on the PATH nor at $PROMTOOL (package prometheus)")
    said = subprocess.run([promtool, *words], cwd=folder, capture_output=True, text=True, check=False, timeout=600)
    assert said.returncode == 0, said.stdout + said.stderr


def test_a_dashboard_needs_no_labels(helm: Helm) -> None:
    """An empty mapping would be no YAML among the others."""
    made = helm.render({**DEPLOYED, "monitoring": {"dashboard": {"enabled": True, "labels": None}}})
    assert made.named("ConfigMap")["metadata"]["labels"].keys() >= {"app.kubernetes.io/name"}


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
