from __future__ import annotations

import subprocess
import sys

BUILT = """
from dra_kit.resource import v1, v1alpha3
found = {value for module in (v1, v1alpha3) for value in vars(module).values() if isinstance(value, type)}
print(*sorted(model.__name__ for model in found if vars(model).get("__pydantic_complete__")))
"""


def test_an_import_builds_no_models_but_those_of_claims() -> None:
    ran = subprocess.run([sys.executable, "-c", BUILT], capture_output=True, text=True, check=False, timeout=120)

    assert ran.stdout.split() == ["DeviceClaim", "ResourceClaimSpec", "ResourceClaimStatus"], ran.stderr
