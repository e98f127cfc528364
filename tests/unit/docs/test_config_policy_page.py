"""What the page on policies shows is what the command writes and the API server says."""

from __future__ import annotations

import re
from pathlib import Path

from dra_kit.admission.policy.manifest import manifest, policy_objects
from tests.unit.admission.policy.drivers import DRIVERS, GPU, PIZZA

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "config-policy.md"


def test_the_comments_on_the_page_are_those_of_the_gpu_driver() -> None:
    (shown,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert manifest(policy_objects(DRIVERS[GPU]), GPU).startswith(shown)


def test_the_refusal_on_the_page_is_a_message_of_the_pizza_driver() -> None:
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    policy = policy_objects(DRIVERS[PIZZA]).policy
    assert any(one["message"] in page for one in policy["spec"]["validations"] if "oven" in one["message"])
    assert f"ValidatingAdmissionPolicy '{policy['metadata']['name']}'" in page
