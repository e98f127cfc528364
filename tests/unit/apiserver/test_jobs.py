"""Jobs as an API server stores and prints them. The answers were measured on kube-apiserver 1.37.1."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.apiserver.conftest import Http, Object

JOBS = "/apis/batch/v1/namespaces/default/jobs"


def job(restart: Any = "Never", **spec: Any) -> Object:
    pod: Object = {"containers": [{"name": "m", "image": "busybox:stable"}]}
    if restart is not None:
        pod["restartPolicy"] = restart
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "j"},
        "spec": {"template": {"spec": pod}, **spec},
    }


async def test_job_gets_defaults_labels_and_a_selector(http: Http) -> None:
    _, made, _ = await http("POST", JOBS, job())

    uid = made["metadata"]["uid"]
    labels = {
        "batch.kubernetes.io/controller-uid": uid, "batch.kubernetes.io/job-name": "j", "controller-uid": uid,
        "job-name": "j",
    }  # fmt: skip
    template = made["spec"].pop("template")
    assert made["spec"] == {
        "parallelism": 1, "completions": 1, "backoffLimit": 6, "manualSelector": False, "completionMode": "NonIndexed",
        "selector": {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}, "suspend": False,
        "podReplacementPolicy": "TerminatingOrFailed",
    }  # fmt: skip
    assert template["metadata"]["labels"] == made["metadata"]["labels"] == labels
    assert (made["metadata"]["generation"], made["status"]) == (1, {})


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"parallelism": 3}, {"parallelism": 3, "completions": None}),
        ({"completions": 5}, {"parallelism": 1, "completions": 5}),
        ({"completionMode": "Indexed"}, {"completions": 1}),
        (
            {"completionMode": "Indexed", "completions": 3, "backoffLimitPerIndex": 2},
            {"backoffLimit": 2147483647, "backoffLimitPerIndex": 2},
        ),
        ({"activeDeadlineSeconds": 0}, {"activeDeadlineSeconds": 0}),
    ],
)
async def test_numbers_have_defaults(http: Http, spec: Object, expected: Object) -> None:
    _, made, _ = await http("POST", JOBS, job(**spec))

    assert {name: made["spec"].get(name) for name in expected} == expected


NEGATIVE = "Invalid value: -1: must be greater than or equal to 0"
RESTART = 'spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"'


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (job("Always"), RESTART),
        (job(None), RESTART),
        *(
            (job(**{name: -1}), f"spec.{name}: {NEGATIVE}")
            for name in (
                "completions", "parallelism", "backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished",
            )
        ),
        (
            job(completionMode="X", completions=1),
            'spec.completionMode: Unsupported value: "X": supported values: "NonIndexed", "Indexed"',
        ),
        (
            job(selector={"matchLabels": {"a": "b"}}, manualSelector=True),
            "spec.template.metadata.labels: Invalid value: null: `selector` does not match template `labels`",
        ),
        (
            job(selector={"matchExpressions": [{"key": "a", "operator": "Is"}]}, manualSelector=True),
            'spec.selector.matchExpressions[0].operator: Invalid value: "Is": not a valid selector operator',
        ),
        (
            job(backoffLimitPerIndex=1),
            "spec.backoffLimitPerIndex: Invalid value: 1: requires indexed completion mode",
        ),
        (
            job(maxFailedIndexes=1),
            (
                "[spec.backoffLimitPerIndex: Required value: when maxFailedIndexes is specified, "
                "spec.maxFailedIndexes: Invalid value: 1: requires indexed completion mode]"
            ),
        ),
        (
            job(podReplacementPolicy="X"),
            'spec.podReplacementPolicy: Unsupported value: "X": supported values: "Failed", "TerminatingOrFailed"',
        ),
        (
            job(managedBy="x"),
            'spec.managedBy: Invalid value: "x": must be a domain-prefixed path (such as "acme.io/foo")',
        ),
    ],
)  # fmt: skip
async def test_invalid_jobs_are_rejected(http: Http, body: Object, error: str) -> None:
    status, answer, _ = await http("POST", JOBS, body)

    assert (status, answer["message"]) == (422, f'Job.batch "j" is invalid: {error}')


@pytest.mark.parametrize("spec", [None, {}, {"template": None}, {"template": {}}, {"template": {"spec": None}}])
async def test_job_without_a_template_is_rejected(http: Http, spec: Any) -> None:
    body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": spec}

    status, answer, _ = await http("POST", JOBS, body)

    assert status == 422
    assert "spec.template.spec.containers: Required value" in answer["message"]


INDEXED: Object = {"completionMode": "Indexed", "completions": 3}
POLICY = "spec.podFailurePolicy.rules[0]"


def failure_rule(**rule: Any) -> Object:
    return job(podFailurePolicy={"rules": [rule]})


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (
            failure_rule(action="X", onExitCodes={"operator": "In", "values": [1]}),
            f'{POLICY}.action: Unsupported value: "X": supported values: "Count", "FailIndex", "FailJob", "Ignore"',
        ),
        (
            failure_rule(action="FailIndex", onExitCodes={"operator": "In", "values": [1]}),
            f'{POLICY}.action: Invalid value: "FailIndex": requires the backoffLimitPerIndex to be set',
        ),
        (
            failure_rule(action="Ignore"),
            f"{POLICY}: Invalid value: specifying one of OnExitCodes and OnPodConditions is required",
        ),
        (
            failure_rule(
                action="Ignore", onExitCodes={"operator": "In", "values": [1]}, onPodConditions=[{"type": "a"}]
            ),
            f"{POLICY}: Invalid value: specifying both OnExitCodes and OnPodConditions is not supported",
        ),
        (
            failure_rule(action="Ignore", onExitCodes={"operator": "In", "values": [2, 0], "containerName": "x"}),
            (
                f'[{POLICY}.onExitCodes.containerName: Invalid value: "x": must be one of the container or '
                "initContainer names in the pod template, "
                f"{POLICY}.onExitCodes.values[1]: Invalid value: 0: must not be 0 for the In operator, "
                f"{POLICY}.onExitCodes.values: Invalid value: [2,0]: must be ordered]"
            ),
        ),
        (
            failure_rule(action="Count", onPodConditions=[{"type": "DisruptionTarget", "status": "Maybe"}]),
            (
                f'{POLICY}.onPodConditions[0].status: Unsupported value: "Maybe": '
                'supported values: "False", "True", "Unknown"'
            ),
        ),
        (
            job("OnFailure", podFailurePolicy={"rules": []}),
            (
                'spec.template.spec.restartPolicy: Invalid value: "OnFailure": '
                'only "Never" is supported when podFailurePolicy is specified'
            ),
        ),
        (
            job(podFailurePolicy={"rules": []}, podReplacementPolicy="TerminatingOrFailed"),
            'spec.podReplacementPolicy: Unsupported value: "TerminatingOrFailed": supported values: "Failed"',
        ),
        (
            job(successPolicy={"rules": [{"succeededCount": 1}]}),
            (
                'spec.successPolicy: Invalid value: {"Rules":[{"SucceededIndexes":null,"SucceededCount":1}]}: '
                "requires indexed completion mode"
            ),
        ),
        (
            job(**INDEXED, successPolicy={"rules": [{"succeededIndexes": "0,2-5"}]}),
            (
                'spec.successPolicy.rules[0].succeededIndexes: Invalid value: "0,2-5": '
                'error parsing succeededIndexes: too large index: "5"'
            ),
        ),
        (
            job(**INDEXED, successPolicy={"rules": [{"succeededIndexes": "0,1", "succeededCount": 3}]}),
            (
                "spec.successPolicy.rules[0].succeededCount: Invalid value: 3: must be less than or equal to 2 "
                "(the number of indexes in the specified succeededIndexes field)"
            ),
        ),
        (
            job(**INDEXED, backoffLimitPerIndex=1, maxFailedIndexes=4),
            "spec.maxFailedIndexes: Invalid value: 4: must be less than or equal to completions",
        ),
    ],
)
async def test_invalid_policies_are_rejected(http: Http, body: Object, error: str) -> None:
    status, answer, _ = await http("POST", JOBS, body)

    assert (status, answer["message"]) == (422, f'Job.batch "j" is invalid: {error}')


@pytest.mark.parametrize("text", ["1-2-3", "a", "2,1", "1,1", "2-1", "٣", "9" * 5000, "1-", ",", "-1"])
async def test_invalid_indexes_are_rejected(http: Http, text: str) -> None:
    body = job(**INDEXED, successPolicy={"rules": [{"succeededIndexes": text}]})

    status, answer, _ = await http("POST", JOBS, body)

    assert status == 422
    assert "error parsing succeededIndexes" in answer["message"]


async def test_job_with_policies_has_their_defaults(http: Http) -> None:
    body = failure_rule(action="FailJob", onPodConditions=[{"type": "DisruptionTarget"}])

    _, made, warnings = await http("POST", JOBS, body)

    assert made["spec"]["podFailurePolicy"]["rules"][0]["onPodConditions"] == [
        {"type": "DisruptionTarget", "status": "True"}
    ]
    assert (made["spec"]["podReplacementPolicy"], warnings) == ("Failed", [])


async def test_foreign_selector_is_rejected(http: Http) -> None:
    _, answer, _ = await http("POST", JOBS, job(selector={"matchLabels": {"a": "b"}}))

    causes = {cause["field"]: cause["message"].rpartition("}: ")[2] for cause in answer["details"]["causes"]}
    assert causes == {
        "spec.selector": "`selector` not auto-generated",
        "spec.template.metadata.labels": "`selector` does not match template `labels`",
    }


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        ({"completions": 5}, 422),
        ({"completionMode": "Indexed"}, 422),
        ({"selector": {"matchLabels": {"a": "b"}}}, 422),
        ({"template": {"metadata": {"labels": {"a": "b"}}}}, 422),
        ({"parallelism": 5, "activeDeadlineSeconds": 44, "suspend": True}, 200),
    ],
)
async def test_what_running_pods_were_made_of_does_not_change(http: Http, spec: Object, code: int) -> None:
    await http("POST", JOBS, job())

    status, answer, _ = await http("PATCH", f"{JOBS}/j", {"spec": spec}, content_type="application/merge-patch+json")

    assert status == code
    assert code == 200 or answer["message"].endswith("field is immutable")


async def test_template_of_a_suspended_job_changes_before_it_starts(http: Http) -> None:
    await http("POST", JOBS, job(suspend=True))
    change = {"spec": {"template": {"spec": {"nodeSelector": {"oven": "hot"}}}}}

    status, _, _ = await http("PATCH", f"{JOBS}/j", change, content_type="application/merge-patch+json")

    assert status == 200


@pytest.mark.parametrize(
    ("spec", "status", "cells"),
    [
        ({}, {}, ["j", "Running", "0/1", ""]),
        ({"completions": 3}, {"succeeded": 2}, ["j", "Running", "2/3", ""]),
        ({"parallelism": 3}, {"succeeded": 1}, ["j", "Running", "1/1 of 3", ""]),
        (
            {},
            {
                "startTime": "2026-01-01T00:00:00Z",
                "completionTime": "2026-01-01T00:05:00Z",
                "conditions": [{"type": "Complete", "status": "True"}],
            },
            ["j", "Complete", "0/1", "5m"],
        ),
        ({}, {"conditions": [{"type": "Suspended", "status": "True"}]}, ["j", "Suspended", "0/1", ""]),
        ({}, {"conditions": [{"type": "FailureTarget", "status": "True"}]}, ["j", "FailureTarget", "0/1", ""]),
    ],
)
async def test_table_shows_progress(http: Http, spec: Object, status: Object, cells: list[str]) -> None:
    await http("POST", JOBS, job(**spec))
    patched = {"status": status}
    await http("PATCH", f"{JOBS}/j/status", patched, content_type="application/merge-patch+json")

    _, table, _ = await http("GET", JOBS, Accept="application/json;as=Table;v=v1;g=meta.k8s.io")

    assert table["rows"][0]["cells"][:4] == cells
    assert [column["name"] for column in table["columnDefinitions"]] == [
        "Name", "Status", "Completions", "Duration", "Age", "Containers", "Images", "Selector",
    ]  # fmt: skip


CRON_JOBS = "/apis/batch/v1/namespaces/default/cronjobs"


def cron_job(name: str = "c", template: Object | None = None, **spec: Any) -> Object:
    spec = {"schedule": "*/5 * * * *", "jobTemplate": {"spec": (template or job())["spec"]}, **spec}
    return {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": name}, "spec": spec}


async def test_cron_job_has_defaults(http: Http) -> None:
    status, made, _ = await http("POST", CRON_JOBS, cron_job())

    template = made["spec"].pop("jobTemplate")
    assert (status, made["spec"]) == (
        201,
        {
            "schedule": "*/5 * * * *", "concurrencyPolicy": "Allow", "suspend": False,
            "successfulJobsHistoryLimit": 3, "failedJobsHistoryLimit": 1,
        },
    )  # fmt: skip
    assert template["spec"].keys() == {"template"}
    assert template["spec"]["template"]["spec"]["containers"][0]["imagePullPolicy"] == "IfNotPresent"
    assert (made["metadata"]["generation"], made["status"]) == (1, {})


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (cron_job(schedule=""), "spec.schedule: Required value"),
        (
            cron_job(schedule="* * *"),
            'spec.schedule: Invalid value: "* * *": expected exactly 5 fields, found 3: [* * *]',
        ),
        (
            cron_job(schedule="TZ=Europe/Berlin @daily"),
            (
                'spec.schedule: Invalid value: "TZ=Europe/Berlin @daily": '
                "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"
            ),
        ),
        (
            cron_job(timeZone="Europe/Atlantis"),
            'spec.timeZone: Invalid value: "Europe/Atlantis": unknown time zone Europe/Atlantis',
        ),
        (
            cron_job(timeZone="../../etc/passwd"),
            'spec.timeZone: Invalid value: "../../etc/passwd": unknown time zone ../../etc/passwd',
        ),
        (
            cron_job(timeZone="Local"),
            (
                'spec.timeZone: Invalid value: "Local": timeZone must be an explicit time zone as defined in '
                "https://www.iana.org/time-zones"
            ),
        ),
        (
            cron_job(concurrencyPolicy="X"),
            'spec.concurrencyPolicy: Unsupported value: "X": supported values: "Allow", "Forbid", "Replace"',
        ),
        (cron_job(startingDeadlineSeconds=-1), f"spec.startingDeadlineSeconds: {NEGATIVE}"),
        (cron_job(successfulJobsHistoryLimit=-1), f"spec.successfulJobsHistoryLimit: {NEGATIVE}"),
        (cron_job("c" * 53), f'metadata.name: Invalid value: "{"c" * 53}": must be no more than 52 characters'),
        (
            cron_job(template=job("Always")),
            'spec.jobTemplate.spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"',
        ),
        (
            cron_job(template=job(manualSelector=True)),
            'spec.jobTemplate.spec.manualSelector: Unsupported value: true: supported values: "nil", "false"',
        ),
    ],
)
async def test_invalid_cron_jobs_are_rejected(http: Http, body: Object, error: str) -> None:
    status, answer, _ = await http("POST", CRON_JOBS, body)

    assert (status, answer["message"]) == (422, f'CronJob.batch "{body["metadata"]["name"]}" is invalid: {error}')


@pytest.mark.parametrize("spec", [None, {}, {"schedule": "@daily"}, {"schedule": "@daily", "jobTemplate": None}])
async def test_cron_job_without_a_template_is_rejected(http: Http, spec: Any) -> None:
    status, answer, _ = await http("POST", CRON_JOBS, {**cron_job(), "spec": spec})

    assert status == 422
    assert "spec.jobTemplate.spec.template.spec.containers: Required value" in answer["message"]


async def test_table_shows_schedules(http: Http) -> None:
    await http("POST", CRON_JOBS, cron_job(timeZone="Europe/Berlin"))
    status = {"status": {"active": [{"name": "c-1"}], "lastScheduleTime": "2026-01-01T00:00:00Z"}}
    await http("PATCH", f"{CRON_JOBS}/c/status", status, content_type="application/merge-patch+json")

    _, table, _ = await http("GET", CRON_JOBS, Accept="application/json;as=Table;v=v1;g=meta.k8s.io")

    cells = table["rows"][0]["cells"]
    assert cells[:5] == ["c", "*/5 * * * *", "Europe/Berlin", "False", 1]
    assert cells[5] != "<none>"
    assert cells[7:] == ["m", "busybox:stable", "<none>"]
    assert [column["name"] for column in table["columnDefinitions"]] == [
        "Name", "Schedule", "Timezone", "Suspend", "Active", "Last Schedule", "Age", "Containers", "Images", "Selector",
    ]  # fmt: skip
