"""What docs/how-to/real-cluster.md says of the chart is so."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.charts.rendering import DEPLOYED, find_helm
from tests.cluster.find import NotFound

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "how-to" / "real-cluster.md").read_text(encoding="utf-8")
CHART = ROOT / "charts" / "dra-driver"


def known(schema: dict[str, Any], path: str) -> bool:
    part = schema
    for name in path.split("."):
        part = part.get("properties", {})
        if name not in part:
            return False
        part = part[name]
    return True


def test_the_values_it_names_are_there() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    named = set(re.findall(r"--set(?:-file)? ([\w.]+)=", PAGE))
    named |= set(re.findall(r"`((?:node|image|webhook)\.[a-zA-Z]+)", PAGE))
    assert len(named) > 10
    assert [path for path in sorted(named) if not known(schema, path)] == []


def test_with_its_values_cert_manager_gives_the_webhook_its_certificate() -> None:
    try:
        helm = find_helm()
    except NotFound as error:
        pytest.skip(f"the page's values are NOT tested, because helm is missing: {error}")
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    (text,) = [block for block in blocks if block.startswith("webhook:") and "cert-manager" in block]
    (made,) = [block for block in blocks if "kind: Certificate" in block]
    certificate = list(yaml.safe_load_all(made))[1]
    rendered = helm.render({**DEPLOYED, **yaml.safe_load(text)})
    configuration = rendered.named("ValidatingWebhookConfiguration")
    service = configuration["webhooks"][0]["clientConfig"]["service"]
    place = f"{certificate['metadata']['namespace']}/{certificate['metadata']['name']}"
    assert configuration["metadata"]["annotations"] == {"cert-manager.io/inject-ca-from": place}
    assert certificate["spec"]["dnsNames"] == [f"{service['name']}.{service['namespace']}.svc"]
    assert rendered.pod("webhook")["volumes"][0]["secret"]["secretName"] == certificate["spec"]["secretName"]


def test_with_its_values_the_webhook_makes_its_certificate_itself() -> None:
    try:
        helm = find_helm()
    except NotFound as error:
        pytest.skip(f"the page's values are NOT tested, because helm is missing: {error}")
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    (text,) = [block for block in blocks if "selfMade" in block]
    environment = helm.render({**DEPLOYED, **yaml.safe_load(text)}).environment("webhook")
    assert "DRA_WEBHOOK_OWN_CERTIFICATE" in environment


def test_a_pod_takes_over_after_the_time_it_says() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert f"ready for {values['node']['minReadySeconds']} seconds" in " ".join(PAGE.split())


def test_every_upgrade_that_keeps_the_values_takes_new_defaults() -> None:
    pages = [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("examples/**/*.md"),
        *ROOT.glob("templates/**/*.md"),
    ]
    pages += [*CHART.rglob("*.md"), *CHART.rglob("*.txt"), *ROOT.glob("dra_kit/cli/**/*.py")]
    upgrades = 0
    for page in pages:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        assert not re.search(r"(?<!then)-reuse-values", text) or page.name == "CHANGELOG.md", page
        for command in re.findall(r"helm upgrade [^\n`]*--set[^\n`]*", text):
            upgrades += 1
            assert "--reset-then-reuse-values" in command or " -f " in command, f"{page}: {command}"
    assert upgrades >= 4
