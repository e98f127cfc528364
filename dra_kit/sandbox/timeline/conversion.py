"""Records of what scheduler and kubelets did; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dra_kit.kubernetes.resource.objects import pod_reference
from dra_kit.kubernetes.scheduler.cycle import SchedulingDecision
from dra_kit.sandbox.cluster.kubelet import activity as kubelet
from dra_kit.sandbox.cluster.kubelet.pods.runtime import ContainerExit
from dra_kit.sandbox.timeline.records import (
    PREPARE,
    UNPREPARE,
    CallEnded,
    CallStarted,
    ContainerEnded,
    ContainerReference,
    ContainerStarted,
    DeviceResult,
    DriverEnded,
    DriverStarting,
    Exit,
    PluginConnected,
    PluginDisconnected,
    PodScheduled,
    PodTerminating,
    PodUnschedulable,
    PreparedDevice,
    Record,
    SlicesWiped,
)

_UNKNOWN: Final = Exit(255, "Unknown")


def of_decision(decision: SchedulingDecision) -> Record:
    """Return the record of a decision about a pod."""
    pod = pod_reference(decision.pod)
    if decision.placement is None:
        reason, message = (decision.refusal.reason, decision.refusal.message) if decision.refusal else ("", "")
        return PodUnschedulable(pod=pod, reason=reason, message=message)
    devices = tuple(
        DeviceResult(claim["metadata"].get("name", ""), choice.request, choice.pool, choice.device, str(choice))
        for claim, choice in decision.choices
    )
    return PodScheduled(pod=pod, node=decision.placement.node, devices=devices)


def of_activity(node: str, activity: kubelet.Activity, environment: Mapping[str, str]) -> Record:
    """Return the record of what happened on a node.

    Args:
        node: its name.
        activity: what happened.
        environment: of the container that was started, if one was.
    """
    match activity:
        case kubelet.PluginConnection(driver=driver, connected=True):
            return PluginConnected(node=node, driver=driver)
        case kubelet.PluginConnection(driver=driver):
            return PluginDisconnected(node=node, driver=driver)
        case kubelet.SlicesWiped(driver=driver):
            return SlicesWiped(node=node, driver=driver)
        case kubelet.PluginCalled() | kubelet.ClaimsPrepared() | kubelet.ClaimsReleased():
            return _of_call(node, activity)
        case kubelet.ContainerStarted():
            return _of_start(node, activity, environment)
        case kubelet.ContainerEnded(pod=pod, status=status):
            container = ContainerReference(pod, status.name, status.id)
            return ContainerEnded(node=node, container=container, exit=_exit(status.exit) or _UNKNOWN)
        case kubelet.PodTerminating(pod=pod):
            return PodTerminating(node=node, pod=pod)
        case kubelet.DriverStarting(driver=driver):
            return DriverStarting(node=node, driver=driver)
        case kubelet.DriverEnded(driver=driver, failure=failure) if failure:
            return DriverEnded(node=node, driver=driver, how="failed", message=failure)
        case kubelet.DriverEnded(driver=driver, killed=killed, step=step):
            message = f"after the step {step}" if step else ""
            return DriverEnded(node=node, driver=driver, how="killed" if killed else "stopped", message=message)


def _of_call(node: str, call: kubelet.PluginCalled | kubelet.ClaimsPrepared | kubelet.ClaimsReleased) -> Record:
    driver, claims = call.driver, call.claims
    match call:
        case kubelet.PluginCalled(method=method, pod_uid=uid):
            return CallStarted(node=node, driver=driver, method=method, pod_uid=uid, claims=claims)
        case kubelet.ClaimsPrepared(pod=pod, seconds=seconds, error=error):
            return CallEnded(
                node=node,
                driver=driver,
                method=PREPARE,
                claims=claims,
                duration=seconds,
                pod=pod,
                devices=tuple(
                    PreparedDevice(item.pool_name, item.device_name, item.cdi_device_ids) for item in call.devices
                ),
                error=error,
            )
        case kubelet.ClaimsReleased(seconds=seconds, error=error):
            return CallEnded(node=node, driver=driver, method=UNPREPARE, claims=claims, duration=seconds, error=error)


def _of_start(node: str, start: kubelet.ContainerStarted, environment: Mapping[str, str]) -> ContainerStarted:
    config = start.config
    return ContainerStarted(
        node=node,
        container=ContainerReference(config.pod, config.name, start.status.id),
        attempt=config.attempt,
        image=config.image,
        command=config.command,
        environment=dict(environment),
        cdi_devices=config.cdi_devices,
        from_claims=config.edits,
        exit=_exit(start.status.exit),
    )


def _exit(found: ContainerExit | None) -> Exit | None:
    return Exit(found.code, found.reason, found.message) if found else None
