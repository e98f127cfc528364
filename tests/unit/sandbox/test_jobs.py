"""Jobs of a whole sandbox, as a user of kubectl sees them."""

from __future__ import annotations

import asyncio
import json
import os
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from dra_kit.client.resources import JOBS, PODS, RESOURCE_CLAIMS
from dra_kit.sandbox.cluster import Sandbox, SandboxSettings
from dra_kit.sandbox.drivers.sandbox_driver import SandboxDriver
from tests.unit.apiserver.programs import program
from tests.unit.sandbox.cluster.kubelet.polling import until
from tests.unit.sandbox.test_sandbox import Settings, new_driver

pytestmark = [pytest.mark.processes, pytest.mark.asyncio(loop_scope="module")]

CLAIMS = """
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: any}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: one}
spec: {spec: {devices: {requests: [{name: one, exactly: {deviceClassName: any}}]}}}
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox() -> AsyncIterator[Sandbox]:
    driver = SandboxDriver((new_driver(),), lambda _: Settings())
    settings = SandboxSettings(time_scale=100, webhook=False, controller=False)
    async with Sandbox(driver, settings) as running:
        await kubectl(running, "apply", "-f", "-", stdin=CLAIMS)
        yield running


async def kubectl(sandbox: Sandbox, *arguments: str, stdin: str = "") -> str:
    env = {"PATH": os.environ["PATH"], "HOME": str(sandbox.directory), "KUBECONFIG": str(sandbox.kubeconfig)}
    process = await asyncio.create_subprocess_exec(
        program("kubectl"), *arguments, env=env, stdin=PIPE, stdout=PIPE, stderr=PIPE
    )
    out, err = await asyncio.wait_for(process.communicate(stdin.encode()), 100)
    assert process.returncode == 0, err
    return out.decode()


async def apply(sandbox: Sandbox, name: str, script: str, *, pod: Any = None, **spec: Any) -> None:
    container = {"name": "main", "image": "x", "command": ["sh", "-c", script], **((pod or {}).pop("container", {}))}
    template = {"spec": {"restartPolicy": "Never", "containers": [container], **(pod or {})}}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {"template": template, **spec}}
    await kubectl(sandbox, "apply", "-f", "-", stdin=json.dumps(job))


def pods(sandbox: Sandbox, job: str) -> list[dict[str, Any]]:
    found = sandbox.informers.objects(PODS).values()
    return [pod for pod in found if (pod["metadata"].get("labels") or {}).get("job-name") == job]


async def test_job_with_claims_completes_and_releases_them(sandbox: Sandbox) -> None:
    claims = {"container": {"resources": {"claims": [{"name": "c"}]}},
              "resourceClaims": [{"name": "c", "resourceClaimTemplateName": "one"}]}  # fmt: skip
    await apply(sandbox, "bake", "true", pod=claims, completions=2)

    await kubectl(sandbox, "wait", "--for=condition=complete", "job/bake", "--timeout=90s")

    assert (await kubectl(sandbox, "get", "job", "bake", "--no-headers")).split()[:3] == ["bake", "Complete", "2/2"]
    await until(lambda: not sandbox.informers.objects(RESOURCE_CLAIMS))


async def test_failing_job_reports_its_limit(sandbox: Sandbox) -> None:
    await apply(sandbox, "burn", "exit 3", backoffLimit=1)

    await kubectl(sandbox, "wait", "--for=condition=failed", "job/burn", "--timeout=90s")

    assert len(pods(sandbox, "burn")) == 2
    described = await kubectl(sandbox, "describe", "job", "burn")
    assert "BackoffLimitExceeded" in described
    assert "2 Failed" in described


async def test_indexed_pods_get_their_index(sandbox: Sandbox) -> None:
    script = "echo $JOB_COMPLETION_INDEX on $HOSTNAME"
    await apply(sandbox, "slices", script, completions=2, parallelism=2, completionMode="Indexed")

    await kubectl(sandbox, "wait", "--for=condition=complete", "job/slices", "--timeout=90s")

    outputs = [await kubectl(sandbox, "logs", pod["metadata"]["name"]) for pod in pods(sandbox, "slices")]
    assert sorted(outputs) == ["0 on slices-0\n", "1 on slices-1\n"]


async def test_deleted_pods_of_jobs_are_replaced_and_go(sandbox: Sandbox) -> None:
    await apply(sandbox, "long", "sleep 3600", pod={"terminationGracePeriodSeconds": 0})
    await until(lambda: [pod["status"]["phase"] for pod in pods(sandbox, "long")] == ["Running"])
    [first] = pods(sandbox, "long")
    await kubectl(sandbox, "delete", "pod", first["metadata"]["name"])

    await until(lambda: [pod["status"]["phase"] for pod in pods(sandbox, "long")] == ["Running"])
    [second] = pods(sandbox, "long")
    await kubectl(sandbox, "delete", "job", "long")

    assert first["metadata"]["uid"] != second["metadata"]["uid"]
    await until(lambda: not pods(sandbox, "long"))


async def test_job_is_deleted_some_time_after_its_end(sandbox: Sandbox) -> None:
    await apply(sandbox, "brief", "true", ttlSecondsAfterFinished=100)

    await kubectl(sandbox, "wait", "--for=delete", "job/brief", "--timeout=90s")

    await until(lambda: not pods(sandbox, "brief"))


CRON_JOB = {
    "apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "nightly"},
    "spec": {
        "schedule": "0 3 * * *", "timeZone": "Europe/Berlin",
        "jobTemplate": {"spec": {"template": {"spec": {
            "restartPolicy": "Never", "containers": [{"name": "main", "image": "x", "command": ["echo", "baked"]}],
        }}}},
    },
}  # fmt: skip


async def test_job_is_made_from_a_cron_job(sandbox: Sandbox) -> None:
    await kubectl(sandbox, "apply", "-f", "-", stdin=json.dumps(CRON_JOB))

    await kubectl(sandbox, "create", "job", "now", "--from=cronjob/nightly")
    await kubectl(sandbox, "wait", "--for=condition=complete", "job/now", "--timeout=90s")

    assert await kubectl(sandbox, "logs", "job/now") == "baked\n"
    [row] = (await kubectl(sandbox, "get", "cronjob", "--no-headers")).splitlines()
    assert row.split()[:5] == ["nightly", "0", "3", "*", "*"]


async def test_cron_job_starts_jobs_and_takes_them_with_it(sandbox: Sandbox) -> None:
    spec = {**CRON_JOB["spec"], "schedule": "@every 1s", "successfulJobsHistoryLimit": 1}  # type: ignore[dict-item]
    often = {**CRON_JOB, "metadata": {"name": "often"}, "spec": spec}
    await kubectl(sandbox, "apply", "-f", "-", stdin=json.dumps(often))

    await kubectl(sandbox, "wait", "--for=jsonpath={.status.lastSuccessfulTime}", "cronjob/often", "--timeout=90s")
    jobs = [job for job in sandbox.informers.objects(JOBS).values() if job["metadata"]["name"].startswith("often-")]
    assert jobs
    events = sandbox.control_plane.server.api.listed
    await until(lambda: any(item.get("reason") == "SawCompletedJob" for item in events("events")))

    await kubectl(sandbox, "delete", "cronjob", "often")
    await until(lambda: not any(name.startswith("often-") for _, name in sandbox.informers.objects(JOBS)))


async def test_policy_ends_a_job_by_the_exit_code(sandbox: Sandbox) -> None:
    rules = [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}]
    await apply(sandbox, "picky", "exit 42", podFailurePolicy={"rules": rules})

    await kubectl(sandbox, "wait", "--for=condition=failed", "job/picky", "--timeout=90s")

    messages = await kubectl(sandbox, "get", "job", "picky", "-o", "jsonpath={.status.conditions[*].message}")
    assert "failed with exit code 42 matching FailJob rule" in messages
