"""``dra-kit chart TARGET --values``: all that a cluster needs for one driver, in one file."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.cli.app import cli
from dra_kit.project.chart import with_value
from tests.charts.options import EXAMPLES
from tests.charts.rendering import CHART

VERBS = ["get", "create", "patch", "delete"]
MENUS = {"apiGroups": ["kitchen.example"], "resources": ["menus"], "verbs": VERBS}
CODE = """
    import dra_kit as dra
    from pydantic import BaseModel


    class Settings(BaseModel):
        ovens: int
        town: str = "naples"


    class Menu(dra.ClusterObject, id="menu", api_version="kitchen.example/v1", kind="Menu", plural="menus"):
        def body(self): return {}


    class Cook(dra.ClusterObject, id="cook", api_version="v1", kind="Pod", plural="pods"):
        @classmethod
        def namespaces(cls, settings): return [settings.town] if settings.ovens > 8 else []
        def body(self): return {}


    class Taste(dra.DevicePolicy, watches=dra.WatchedObject(group="kitchen.example", version="v1", plural="tastes")):
        def advertise(self, device, watched): return device


    class Oven(dra.DeviceProvider):
        def discover(self): yield []


    class Warehouse(dra.DeviceProvider, scope="cluster"):
        def discover(self): yield dra.Inventory()


    class Waiter(dra.Preparer):
        def prepare(self, claim, device): return dra.Prepared()


    driver = dra.Driver(
        "dra.pizza", provider=Oven(), preparer=Waiter(), cluster_provider=Warehouse(), policy=Taste(),
        effects=[Menu, Cook], settings=Settings,
    )
"""


def made(target: Path, code: int = 0) -> str:
    """What the command prints for a driver."""
    result = CliRunner().invoke(cli, ["chart", str(target), "--values", "-"])
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with that code, and an author's values."""
    (tmp_path / "driver.py").write_text(textwrap.dedent(CODE))
    (tmp_path / "pyproject.toml").write_text('[tool.dra-kit]\ndriver = "driver:driver"\n')
    (tmp_path / "deploy").mkdir()
    return tmp_path


def write(project: Path, text: str) -> None:
    """Write what the author decides."""
    (project / "deploy" / "values.yaml").write_text(textwrap.dedent(text))


@pytest.mark.parametrize("example", ["pizza-driver", "gpu-driver", "nic-driver", "cpu-driver", "cpu-driver/memory"])
def test_the_file_of_an_example_is_what_the_command_makes(example: str, monkeypatch: pytest.MonkeyPatch) -> None:
    project = EXAMPLES / example
    monkeypatch.syspath_prepend(project.parent / "src")  # the code of the second driver of a project
    assert (project / "values.yaml").read_text() == made(project), "`make chart`, and look at `git diff`"


@pytest.mark.parametrize(
    ("page", "name"),
    [
        (CHART, "pizza"),
        (EXAMPLES / "gpu-driver", "gpu"),
        (EXAMPLES / "nic-driver", "nic"),
        (EXAMPLES / "cpu-driver", "cpu"),
        (EXAMPLES / "cpu-driver", "memory"),
    ],
    ids=["pizza", "gpu", "nic", "cpu", "memory"],
)
def test_one_command_that_a_page_names_installs_an_example(page: Path, name: str) -> None:
    text = (page / "README.md").read_text()
    [(chart, file)] = re.findall(rf"^`?helm install {name} (\S+) -f ([^\s`]+)", text, re.MULTILINE)
    root = CHART.parents[1]
    assert root / chart == CHART
    assert (root / file).is_file()


def test_rights_that_the_code_declares_are_in_them(project: Path) -> None:
    write(project, "node: {settings: {ovens: 1}}")
    values = yaml.safe_load(made(project))
    watched = {"apiGroups": ["kitchen.example"], "resources": ["tastes"], "verbs": ["list", "watch"]}
    assert values["node"] == {"settings": {"ovens": 1}, "extraRules": [watched, MENUS]}
    assert values["controller"] == {"clusterPools": True}
    assert (values["driverName"], values["target"]) == ("dra.pizza", "driver:driver")


def test_objects_that_the_code_reads_are_among_the_rights(project: Path) -> None:
    code = (project / "driver.py").read_text()
    reads = (
        'reads=[dra.Reads("k8s.cni.cncf.io/v1", "network-attachment-definitions"), '
        'dra.Reads("v1", "configmaps", namespace=lambda settings: settings.town, names=["menu"])]'
    )
    (project / "reader.py").write_text(code.replace("settings=Settings,", f"settings=Settings, {reads},"))
    (project / "pyproject.toml").write_text('[tool.dra-kit]\ndriver = "reader:driver"\n')
    write(project, "node: {settings: {ovens: 1, town: '{{ .Release.Namespace }}'}}")
    node = yaml.safe_load(made(project))["node"]
    networks = {"apiGroups": ["k8s.cni.cncf.io"], "resources": ["network-attachment-definitions"]}
    assert {**networks, "verbs": ["get", "list"]} in node["extraRules"]
    menu = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["menu"], "verbs": ["get"]}
    assert node["namespacedRules"] == {"{{ .Release.Namespace }}": [menu]}


def test_controller_that_binds_elsewhere_gives_this_driver_no_right_to_bind(project: Path) -> None:
    code = (project / "driver.py").read_text()
    bound = code.replace("settings=Settings,", "settings=Settings, binder=dra.BoundElsewhere(),")
    (project / "bound.py").write_text(bound)
    (project / "pyproject.toml").write_text('[tool.dra-kit]\ndriver = "bound:driver"\n')
    write(project, "node: {settings: {ovens: 1}}")
    assert yaml.safe_load(made(project))["controller"] == {"clusterPools": True}


def test_driver_without_a_preparer_is_installed_without_nodes(project: Path) -> None:
    code = (project / "driver.py").read_text()
    alone = (
        code[: code.index("driver = dra.Driver(")] + 'driver = dra.Driver("dra.pizza", cluster_provider=Warehouse())\n'
    )
    (project / "alone.py").write_text(alone)
    (project / "pyproject.toml").write_text('[tool.dra-kit]\ndriver = "alone:driver"\n')
    values = yaml.safe_load(made(project))
    assert (values["node"], values["controller"]) == ({"enabled": False}, {"clusterPools": True})


def test_objects_that_the_policy_watches_are_among_the_rights(project: Path) -> None:
    code = (project / "driver.py").read_text()
    watched = 'group="", version="v1", plural="configmaps", namespace=lambda settings: settings.town, name="menu"'
    (project / "watcher.py").write_text(code.replace('group="kitchen.example", version="v1", plural="tastes"', watched))
    (project / "pyproject.toml").write_text('[tool.dra-kit]\ndriver = "watcher:driver"\n')
    write(project, "node: {settings: {ovens: 1}}")
    node = yaml.safe_load(made(project))["node"]
    menu = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "watch"], "resourceNames": ["menu"]}
    assert node["namespacedRules"] == {"naples": [menu]}


def test_where_they_are_needed_depends_on_the_settings_there(project: Path) -> None:
    write(
        project,
        """\
        node:
          settings:
            ovens: 9
            town: '{{ .Release.Namespace }}'
        """,
    )
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": [*VERBS, "list"]}
    assert yaml.safe_load(made(project))["node"]["namespacedRules"] == {"{{ .Release.Namespace }}": [rule]}


def test_missing_setting_is_reported(project: Path) -> None:
    write(project, "node: {settings: {}}")
    told = made(project, code=2)
    assert "ovens" in told
    assert "node.settings in deploy/values.yaml" in told


def test_config_in_a_class_is_checked_before_a_cluster_has_the_webhook_for_it(project: Path) -> None:
    write(project, "node: {settings: {ovens: 1}}")
    parameters = "{apiVersion: dra.pizza/v1, kind: PizzaConfig}"
    (project / "deviceclasses.yaml").write_text(
        "apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {name: hot}\n"
        f"spec: {{config: [{{opaque: {{driver: dra.pizza, parameters: {parameters}}}}}]}}\n"
    )
    told = made(project, code=2)
    assert "deviceclasses.yaml: DeviceClass hot: spec.config[0].opaque.parameters" in told


def test_rules_of_the_author_stay_beside_them_with_every_comment(project: Path) -> None:
    write(
        project,
        """\
        # about this file alone

        # which oven
        driverName: dra.pizza
        node:
          # of the handlers
          extraRules:
            - {apiGroups: [""], resources: [nodes], verbs: [get]}
          # how many
          settings:
            ovens: 1  # one
        # the rest
        logging: {level: debug}
        """,
    )
    text = made(project)
    of_the_author = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}
    rules = yaml.safe_load(text)["node"]["extraRules"]
    assert rules[0] == of_the_author
    assert MENUS in rules
    for comment in ("# of the handlers\n", "# how many\n", "# one\n", "# the rest\n"):
        assert comment in text
    assert "about this file alone" not in text


def test_what_the_chart_does_not_know_is_refused(project: Path) -> None:
    write(project, "node: {settings: {ovens: 1}, ovens: 7}")
    assert "deploy/values.yaml: node.ovens" in made(project, code=2)


@pytest.mark.parametrize("node", ["[]", "{settings: []}", "{extraRules: {}}"])
def test_values_of_a_wrong_shape_are_refused(project: Path, node: str) -> None:
    write(project, f"node: {node}")
    assert "deploy/values.yaml: node" in made(project, code=2)


def test_a_file_of_globs_is_all_of_a_driver(tmp_path: Path) -> None:
    file = tmp_path / "serial.yaml"
    file.write_text("driver: serial.example.com\ndevices:\n- paths: /dev/ttyUSB*\n")
    assert yaml.safe_load(made(file)) == {"globs": file.read_text()}


_NAMES = st.sampled_from(["a", "b", "cc"])
_TEXTS = st.sampled_from(["x", "two\nlines\n", "a: b", ""])
_LEAVES: st.SearchStrategy[Any] = st.integers() | st.just([]) | st.just({}) | _TEXTS
_VALUES = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=3), max_leaves=8
)


@given(
    before=st.dictionaries(_NAMES, _VALUES, max_size=3),
    path=st.lists(_NAMES, min_size=1, max_size=3).map(tuple),
    value=_VALUES,
    flow=st.sampled_from([False, None, True]),
)
def test_one_value_is_set_and_no_other_changes(
    before: dict[str, Any], path: tuple[str, ...], value: Any, flow: bool | None
) -> None:
    text = yaml.safe_dump(before, default_flow_style=flow)
    commented = "".join(f"{line}\n" for line in text.splitlines()) + "# last\n"
    expected = {**before}
    inner = expected
    for name in path[:-1]:
        below = inner.get(name)
        inner[name] = {**below} if isinstance(below, dict) else {}
        inner = inner[name]
    inner[path[-1]] = value
    assert yaml.safe_load(with_value(commented, path, value)) == expected


HOOKS = """

    class Pins(dra.PodHooks):
        def pod_stops(self, pod, devices): pass


    driver = dra.Driver("dra.pizza", provider=Oven(), preparer=Waiter(), pod_hooks=Pins())
"""


def test_a_driver_with_pod_hooks_gets_the_socket_of_the_runtime(project: Path) -> None:
    (project / "pins.py").write_text(textwrap.dedent(CODE) + textwrap.dedent(HOOKS))
    (project / "pyproject.toml").write_text('[tool.dra-kit]\ndriver = "pins:driver"\n')
    assert yaml.safe_load(made(project))["node"]["nriSocket"] == "/var/run/nri/nri.sock"
    write(project, "node: {nriSocket: /run/k3s/nri.sock}")
    assert yaml.safe_load(made(project))["node"]["nriSocket"] == "/run/k3s/nri.sock"
