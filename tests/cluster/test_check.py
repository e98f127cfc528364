"""``dra-kit check`` on a real cluster and its node, as an administrator and as the accounts of the roles."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cluster.node_driver import NodeDriver
from tests.cluster.pizza import DRIVER, PROJECT
from tests.cluster.processes import DRA_KIT

ELSEWHERE = ("--kubelet-dir", "/nonexistent")


def checked(kubeconfig: Path, *arguments: object) -> Sequence[str]:
    """Its lines; each says what to do, or that it is well."""
    command = [*map(str, (DRA_KIT, "check", "--kubeconfig", kubeconfig, *arguments))]
    told = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert told.returncode in {0, 1}, told.stderr
    lines = told.stdout.splitlines()
    assert all(line.startswith("ok ") or "; " in line for line in lines), told.stdout
    assert (told.returncode == 1) == any(line.startswith("FAIL") for line in lines)
    return lines


def about(what: str, lines: Sequence[str]) -> str:
    """The lines about one thing, as one text."""
    return "\n".join(line for line in lines if line[5:].startswith(f"{what}: "))


def test_a_cluster_and_its_node_are_well(pizza: NodeDriver) -> None:
    tool = pizza.plane.tool
    runtime = () if tool is None else ("--cri-socket", tool[1] / "containerd.sock")
    lines = checked(pizza.plane.kubeconfig, "--driver", DRIVER, *runtime)
    assert not [line for line in lines if line.startswith("FAIL")], lines
    assert about("driver", lines).startswith(f"ok   driver: {DRIVER}: ")
    assert about("kubelet root", lines).startswith("ok")
    assert about("kubelet configuration", lines).startswith("ok")
    if runtime:
        assert "reads CDI files in /var/run/cdi" in about("container runtime", lines)


@pytest.mark.parametrize("account", ["node", "webhook"])
def test_an_account_of_the_chart_may_do_what_its_role_needs(pizza: NodeDriver, account: str) -> None:
    lines = checked(pizza.access.kubeconfig(account), PROJECT, "--account", account, *ELSEWHERE)
    told = f"ok   rights: system:serviceaccount:{pizza.access.namespace}:{pizza.access.release}-{account} may do all"
    assert about("rights", lines).startswith(told)


def test_check_names_missing_rights(pizza: NodeDriver) -> None:
    lines = checked(pizza.access.kubeconfig("webhook"), PROJECT, "--account", "controller", *ELSEWHERE)
    missing = about("rights", lines).splitlines()
    assert len(missing) > 8
    assert any("watch resourceclaims.resource.k8s.io, which following claims needs" in line for line in missing)
