"""Each statement of docs/how-to/monitor.md is tied to the tests that prove it."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final

import pytest

from tests.unit.docs.pages import HOW_TO, ROOT

STATUS: Final = "tests/unit/node/operation/test_status.py"
CHECKS: Final = "tests/unit/diagnosis/operation/test_checks.py"
BUNDLE: Final = "tests/unit/diagnosis/operation/test_bundle.py"
CHART: Final = "tests/charts/test_monitoring.py"
TRACES: Final = "tests/unit/node/operation/test_traces.py"

TIES: Final[Mapping[str, Sequence[str]]] = {
    "*For cluster administrators.*": (),
    "Problems are listed first": (
        f"{STATUS}::test_status_without_problems",
        f"{STATUS}::test_status_has_the_error_of_a_rejecting_kubelet",
        f"{STATUS}::test_status_has_the_reason_for_unpublished_slices",
        f"{STATUS}::test_status_shows_differences_of_a_pool",
        f"{STATUS}::test_corrupt_and_lost_state_are_problems",
        f"{STATUS}::test_status_lists_effects_and_their_claims",
        f"{STATUS}::test_status_lists_each_failure_once_with_its_code",
        f"{STATUS}::test_status_without_driver_suggests_where_to_run_it",
    ),
    "From a laptop, `dra-kit check` asks": (
        f"{CHECKS}::test_the_command_prints_each_result_and_fails_if_one_does",
        f"{CHECKS}::test_the_root_directory_of_the_kubelet",
        f"{CHECKS}::test_sockets_of_drivers",
        f"{CHECKS}::test_a_gate_that_is_off_is_found_by_a_dry_run",
        "tests/unit/diagnosis/operation/test_cri.py::test_containerd_reports_whether_and_where_it_reads_cdi_files",
    ),
    "In the pod of a role": (
        f"{CHECKS}::test_the_pod_of_a_role_is_known_by_its_first_process",
        f"{CHECKS}::test_each_part_of_the_driver_needs_its_own_rights",
        f"{CHECKS}::test_a_roles_pod_sends_only_requests_that_the_role_is_allowed",
        "tests/charts/test_check_rights.py::test_the_rights_of_a_role_are_those_of_its_roles",
    ),
    "The bundle contains checks": (
        f"{BUNDLE}::test_no_planted_secret_is_in_the_bundle",
        f"{BUNDLE}::test_text_that_looks_like_a_credential_is_redacted",
        f"{BUNDLE}::test_variables_that_may_be_secrets",
        f"{BUNDLE}::test_an_object_keeps_its_shape",
    ),
    "The chart creates these objects": (
        f"{CHART}::test_nothing_of_it_is_made_unless_it_is_asked_for",
        f"{CHART}::test_a_service_monitor_asks_the_same_pods_in_the_same_way",
        f"{CHART}::test_the_kubelets_pod_resources_are_mounted_to_be_read_where_that_is_asked_for",
    ),
    "Without the Operator": (
        f"{CHART}::test_the_pods_of_all_roles_are_scraped_where_they_serve",
        f"{CHART}::test_every_label_that_is_named_is_one_of_its_metric",
    ),
    "| alert | means |": (
        f"{CHART}::test_the_page_has_a_line_for_each_alert",
        f"{CHART}::test_each_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not",
        f"{CHART}::test_alerts_fire_when_they_should_and_not_before",
        f"{CHART}::test_a_case_of_an_administrator_raises_the_alert_that_was_wanted",
    ),
    "A process that is gone": (
        f"{CHART}::test_alerts_fire_when_they_should_and_not_before",
        f"{CHART}::test_a_role_that_values_switch_off_has_no_alert",
        f"{CHART}::test_alerts_are_about_this_driver_and_release_only",
    ),
    "With `--log-format json`": (
        f"{TRACES}::test_log_lines_of_the_driver_name_claim_pod_and_device",
        "tests/unit/cli/roles/test_start_errors.py::test_an_error_of_the_configuration_is_a_line_of_json",
        "tests/unit/cli/roles/test_start_errors.py::test_warnings_and_threads_of_the_drivers_code_are_lines_of_json",
    ),
    "With the extra `dra-kit[otel]`": (
        f"{TRACES}::test_prepare_is_one_trace_from_the_call_to_the_durable_write",
        "tests/unit/process/test_tracing.py::test_tracing_is_configured_by_the_environment",
        "tests/unit/process/test_tracing.py::test_node_without_a_collector_does_not_load_opentelemetry",
    ),
}
"""The beginning of each paragraph, and the tests of what it says."""


def paragraphs() -> list[str]:
    """The paragraphs and tables of the page, without headings and blocks of code."""
    text = re.sub(
        r"^```.*?^```$", "", (HOW_TO / "monitor.md").read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    return [part.strip() for part in text.split("\n\n") if part.strip() and not part.strip().startswith("#")]


@cache
def functions(file: str) -> frozenset[str]:
    """The names of the functions of a module."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_each_paragraph_is_tied_to_tests_once() -> None:
    found = [[begin for begin in TIES if paragraph.startswith(begin)] for paragraph in paragraphs()]
    assert [len(each) for each in found] == [1] * len(found), found
    assert {begin for each in found for begin in each} == set(TIES)


@pytest.mark.parametrize("test", sorted({test for tests in TIES.values() for test in tests}))
def test_a_test_that_proves_a_statement_is_there(test: str) -> None:
    file, name = test.split("::")
    assert name in functions(file)
