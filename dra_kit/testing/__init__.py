"""Tests of a driver on a cluster: the sandbox, or a real one.

With dra-kit installed, pytest has a fixture ``dra``; a first test is this::

    def test_a_pizza_has_its_dough(dra):
        dra.apply("order.yaml")
        guest = dra.wait("guest")
        assert guest.containers["eater"].environment["PIZZA_0_DOUGH"] == "thin"

The driver is the one that ``[tool.dra-kit]`` of ``pyproject.toml`` names, or that of pytest's setting ``dra_target``.
``pytest --dra-kubeconfig PATH`` runs the same tests on a real cluster in which the driver is deployed.

Names are imported on first use, since pytest loads the plugin in every run, even if no test needs a cluster.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dra_kit.errors import Conflict, Invalid, KubeError, NotFound
    from dra_kit.sandbox.stories.facts import ClaimFacts, Cluster, ContainerFacts, PodFacts, PublishedDevice
    from dra_kit.testing.bed import TestBed, deployed, sandbox
    from dra_kit.testing.bench import Bench, BlockingBench, unit
    from dra_kit.testing.hardware import FakeHardware
    from dra_kit.testing.harness import Harness

_HOME_OF = {
    "Bench": "testing.bench",
    "BlockingBench": "testing.bench",
    "ClaimFacts": "sandbox.stories.facts",
    "Cluster": "sandbox.stories.facts",
    "Conflict": "errors",
    "ContainerFacts": "sandbox.stories.facts",
    "FakeHardware": "testing.hardware",
    "Harness": "testing.harness",
    "Invalid": "errors",
    "KubeError": "errors",
    "NotFound": "errors",
    "PodFacts": "sandbox.stories.facts",
    "PublishedDevice": "sandbox.stories.facts",
    "TestBed": "testing.bed",
    "deployed": "testing.bed",
    "sandbox": "testing.bed",
    "unit": "testing.bench",
}
__all__ = [
    "Bench",
    "BlockingBench",
    "ClaimFacts",
    "Cluster",
    "Conflict",
    "ContainerFacts",
    "FakeHardware",
    "Harness",
    "Invalid",
    "KubeError",
    "NotFound",
    "PodFacts",
    "PublishedDevice",
    "TestBed",
    "deployed",
    "sandbox",
    "unit",
]
if not TYPE_CHECKING:  # else a type checker would accept any misspelt name

    def __getattr__(name: str) -> Any:
        home = _HOME_OF.get(name)
        if home is None:
            raise AttributeError(f"module 'dra_kit.testing' has no attribute {name!r}")
        value = getattr(importlib.import_module(f"dra_kit.{home}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
