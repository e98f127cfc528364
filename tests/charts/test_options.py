"""What the chart makes of values that set every option: kept to be looked at, and taken by an API server."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from dra_kit.apiserver.server import ApiServer
from dra_kit.client.api import Client
from dra_kit.client.credentials import Connection, Credentials
from dra_kit.client.resources import NAMESPACES, Resource
from dra_kit.errors import Invalid, KubeError
from dra_kit.project.chart_values import ChartValues, generated
from tests.charts import monitoring_kinds
from tests.charts.options import ROWS, set_paths, snapshot
from tests.charts.rendering import CHART, DRIVER, NAMESPACE, Helm, Refused, parsed

SCHEMA = yaml.safe_load((CHART / "values.schema.json").read_text(encoding="utf-8"))
VALUES = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))


def test_the_file_of_values_is_one_of_the_model() -> None:
    made = ChartValues.model_validate(VALUES)

    assert made.model_dump(by_alias=True) == VALUES  # every value that the model knows is in the file


def test_the_schema_and_the_readme_are_made_of_the_model_and_the_file_of_values() -> None:
    for path, text in generated(CHART).items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: python -m dra_kit.project.chart_values"


def test_the_table_sets_every_option_to_something_else() -> None:
    defaults = dict(set_paths(VALUES, SCHEMA))
    changed = {
        path for values in ROWS.values() for path, value in set_paths(values, SCHEMA) if value != defaults.get(path)
    }

    assert defaults.keys() - changed == set(), "set each of these to another value in tests/charts/options.py"


@pytest.mark.parametrize("row", ROWS)
def test_what_is_rendered_is_what_was_looked_at(row: str, helm: Helm) -> None:
    kept = list(parsed(snapshot(row).read_text(encoding="utf-8")))

    assert helm.render(ROWS[row]).objects == kept, "python -m tests.charts.snapshots, and look at the difference"


def test_no_two_objects_have_one_name(helm: Helm) -> None:
    for row, values in ROWS.items():
        names = Counter(
            (item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"])
            for item in helm.render(values).objects
        )
        assert [name for name, count in names.items() if count > 1] == [], row


@pytest.mark.parametrize("row", ["everything", "bare"])
def test_the_chart_is_well_formed(row: str, helm: Helm) -> None:
    helm.lint(ROWS[row])


@pytest.mark.parametrize("values", [{}, {"driverName": DRIVER}], ids=["no values", "a name alone"])
def test_the_chart_is_well_formed_without_the_values_that_it_requires(values: Mapping[str, Any], helm: Helm) -> None:
    helm.lint(values)
    if not values:
        with pytest.raises(Refused, match="driverName is required"):
            helm.template(values)


def test_no_list_is_empty_since_an_api_server_does_not_store_it(helm: Helm) -> None:
    """``kubectl diff`` would always show such a list, and a new generation."""
    empty = {
        f"{row}: {item['kind']} {item['metadata']['name']}{place}"
        for row, values in ROWS.items()
        for item in helm.render(values).objects
        for place in _empty_lists(item)
    }
    assert empty == set()


def _empty_lists(value: Any, place: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _empty_lists(item, f"{place}.{name}")
    elif isinstance(value, list):
        if not value:
            yield place
        for number, item in enumerate(value):
            yield from _empty_lists(item, f"{place}[{number}]")


class Cluster:
    """An API server that refuses fields which it does not know, and stores nothing."""

    def __init__(self, server: ApiServer, client: Client) -> None:
        self.server, self.client = server, client

    async def create(self, body: Mapping[str, Any]) -> None:
        if body["apiVersion"].startswith("monitoring.coreos.com/"):
            monitoring_kinds.check(body)
            return
        if body["kind"] == "Job":  # is not served here: its pods are
            metadata = {"generateName": "job-", "namespace": body["metadata"]["namespace"]}
            pod = {**body["spec"]["template"]["spec"], "serviceAccountName": "default"}
            body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod}
        kind = self.server.api.registry.by_kind(body["apiVersion"], body["kind"])
        assert kind is not None, f"{body['kind']} is not served"
        version = body["apiVersion"].rpartition("/")[2]
        resource = Resource(kind.group, version, kind.plural, kind.kind, namespaced=kind.namespaced)
        assert bool(body["metadata"].get("namespace")) is kind.namespaced, f"{body['kind']}: metadata.namespace"
        await self.client.create(resource, body, dry_run=True, strict=True)


@pytest.fixture
async def cluster(helm: Helm) -> AsyncIterator[Cluster]:
    async with ApiServer() as server, Client(Credentials(Connection(server.url)), user_agent="helm/1") as client:
        for name in (NAMESPACE, "other"):
            await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        yield Cluster(server, client)


async def test_an_api_server_takes_all_of_it(cluster: Cluster, helm: Helm) -> None:
    refused, kinds = [], set()
    for row, values in ROWS.items():
        for item in helm.render(values).objects:
            kinds.add(item["kind"])
            try:
                await cluster.create(item)
            except (KubeError, ValidationError) as error:
                refused.append(f"{row}: {item['kind']} {item['metadata']['name']}: {error}")

    assert refused == []
    assert {"DaemonSet", "Job", "PodMonitor", "ServiceMonitor", "PrometheusRule", "ValidatingAdmissionPolicy"} <= kinds


@pytest.mark.parametrize("kind", ["DaemonSet", "Job", "PodMonitor"])
async def test_unknown_fields_would_be_reported(kind: str, cluster: Cluster, helm: Helm) -> None:
    item = copy.deepcopy(next(each for each in helm.render(ROWS["everything"]).objects if each["kind"] == kind))
    place = item["spec"]["template"]["spec"] if "template" in item["spec"] else item["spec"]
    place["hostNetwrok"] = True

    with pytest.raises((Invalid, ValidationError), match="hostNetwrok"):
        await cluster.create(item)
