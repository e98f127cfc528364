"""Calls the hooks of ``PodHooks`` with devices from the records of claims, and checks what they return.

Which pod sandboxes have had the pod hook is remembered until they end, also by the driver's next process.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import quote, unquote

from dra_kit.author.calls import call, describe_raised_error, run_in_thread, running_calls
from dra_kit.author.claim import ConsumerReference
from dra_kit.author.pod_hooks import (
    ContainerAdjustment,
    ContainerUpdate,
    DeviceFacts,
    HeldDevice,
    PodHooks,
    RuntimeContainer,
    RuntimePod,
)
from dra_kit.errors import DraKitError, InvalidPrepared, StoreError, TransientError
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.context import DeviceUpdate
from dra_kit.node.state.records import ClaimRecord
from dra_kit.process.logging import context_of, log_context
from dra_kit.process.tracing import span
from dra_kit.slices.inventory import CurrentInventory

logger: logging.Logger = logging.getLogger(__name__)
Hook: TypeAlias = Literal["synchronize", "pod_starts", "container_starts", "pod_stops"]
HookResult: TypeAlias = Literal["ok", "failed", "late"]
DeviceKey: TypeAlias = tuple[str, str, str, str | None, str]
"""UID of the claim, pool, device, share and request."""
_WRITE: Final[dict[type[Any], str]] = {
    DeviceFacts: "dra_kit.DeviceFacts(device=…, …)",
    ContainerUpdate: "dra_kit.ContainerUpdate(container=…, …)",
    ContainerAdjustment: "dra_kit.ContainerAdjustment(…) or None",
}


def held_devices(record: ClaimRecord, inventory: CurrentInventory) -> list[HeldDevice[Any]]:
    """Return the devices of a prepared claim, as hooks get them, in the order of its record."""
    consumers = record.consumers or tuple(ConsumerReference("", "pods", name, "") for name in record.pods)
    return [
        HeldDevice(
            name=item.device,
            pool=item.pool,
            claim=record.reference,
            consumers=consumers,
            request=item.request,
            share_id=item.share_id,
            admin_access=item.admin_access,
            state=item.state,
            advertised=inventory.find(item.pool, item.device),
        )
        for item in record.devices
    ]


def device_updates(facts: Iterable[DeviceFacts]) -> dict[ClaimReference, list[DeviceUpdate]]:
    """Return facts by claim, as they are stored."""
    found: dict[ClaimReference, list[DeviceUpdate]] = {}
    for item in facts:
        device = item.device
        update = DeviceUpdate(
            device.pool, device.name, device.claim.uid, device.share_id, status=item.status, metadata=item.metadata
        )
        found.setdefault(device.claim, []).append(update)
    return found


def checked_updates(updates: Iterable[ContainerUpdate]) -> tuple[ContainerUpdate, ...]:
    """Return what the author's code gives to ``runtime.update``.

    Raises:
        InvalidPrepared: an item has another type.
    """
    given = tuple(updates)
    for item in given:
        if not isinstance(item, ContainerUpdate):
            raise InvalidPrepared(f"runtime.update got a {type(item).__name__}; give it {_WRITE[ContainerUpdate]}")
    return given


class HookCalls:
    """Calls the hooks of one driver; each method runs in a thread, or in the event loop if it is ``async def``.

    The methods raise a DraKitError: the author's exception, or that a result has the wrong type.

    Args:
        hooks: of the driver.
        allowed: returns the seconds after which a hook counts as late; the caller has given up by then.

    Attributes:
        results: how often each hook had each result; a late hook counts as late and not as ok or failed.
    """

    def __init__(self, hooks: PodHooks[Any, Any, Any], allowed: Callable[[], float] = lambda: float("inf")) -> None:
        self._hooks = hooks
        self._allowed = allowed
        self.results: Counter[tuple[Hook, HookResult]] = Counter()

    def has(self, hook: Hook) -> bool:
        """Return whether the author overrides a hook."""
        return getattr(type(self._hooks), hook) is not getattr(PodHooks, hook)

    def activity(self, pod: str) -> str:
        """Return which hook of a pod (``namespace/name``) runs, since when, and where it is now; empty for none.

        A running ``synchronize``, for which the hooks of pods wait, comes last.
        """
        own = [item for item in running_calls(asyncio.get_running_loop()) if item.owner is self._hooks]
        of_pod = [item for item in own if context_of(item.context).get("pod") == pod]
        synchronizing = [item for item in own if item.method == self._title("synchronize")]
        for item in (*of_pod, *synchronizing):
            place = item.place(type(self._hooks).__module__)
            return (
                f"{item.method} has run for {time.monotonic() - item.since:.3g} s{f', now at {place}' if place else ''}"
            )
        return ""

    async def synchronize(self, pods: Sequence[RuntimePod]) -> list[ContainerUpdate]:
        """Return the updates of the author's ``synchronize``."""
        return await self._all("synchronize", ContainerUpdate, pods)

    async def pod_starts(self, pod: RuntimePod) -> list[DeviceFacts]:
        """Return the facts of the author's ``pod_starts``, each about one of the pod's devices."""
        with _about(pod, pod.devices):
            facts = await self._all("pod_starts", DeviceFacts, pod, pod.devices)
        known = {_key(device) for device in pod.devices}
        for item in facts:
            if _key(item.device) not in known:
                raise InvalidPrepared(
                    f"{self._title('pod_starts')} returned facts about device {item.device.pool}/{item.device.name}, "
                    f"which pod {pod} does not hold; use devices of the argument"
                )
        return facts

    async def container_starts(
        self, pod: RuntimePod, container: RuntimeContainer, devices: Sequence[HeldDevice[Any]]
    ) -> ContainerAdjustment | None:
        """Return the adjustment of the author's ``container_starts``."""
        if not self.has("container_starts"):
            return None
        with _about(pod, devices):
            adjustment = await self._call("container_starts", pod, container, devices)
        if adjustment is not None and not isinstance(adjustment, ContainerAdjustment):
            raise self._wrong("container_starts", adjustment, ContainerAdjustment)
        return adjustment

    async def pod_stops(self, pod: RuntimePod) -> None:
        """Call the author's ``pod_stops``."""
        if self.has("pod_stops"):
            with _about(pod, pod.devices):
                await self._call("pod_stops", pod, pod.devices)

    async def _all(self, hook: Hook, kind: type[Any], *arguments: Any) -> list[Any]:
        if not self.has(hook):
            return []
        returned = await self._call(hook, *arguments)
        if returned is None:
            return []
        if not isinstance(returned, Iterable) or isinstance(returned, str | bytes):
            raise self._wrong(hook, returned, kind)
        items = list(returned)
        for item in items:
            if not isinstance(item, kind):
                raise self._wrong(hook, item, kind)
        return items

    async def _call(self, hook: Hook, *arguments: Any) -> Any:
        late = False

        def is_late() -> None:
            nonlocal late
            late = True
            self.results[hook, "late"] += 1

        method = getattr(self._hooks, hook)

        @wraps(method)
        def complete(*given: Any) -> Any:
            returned = method(*given)
            # what a generator does is the author's code, which may block
            return tuple(returned) if isinstance(returned, Iterator) else returned

        allowed = self._allowed()
        loop = asyncio.get_running_loop()
        alarm = loop.call_later(allowed, is_late) if allowed < float("inf") else None
        try:
            with span(f"driver code {hook}"):
                returned = await call(complete, *arguments)
                if isinstance(returned, Iterator):  # of an async def
                    returned = await run_in_thread(tuple, returned)
        except Exception as error:
            if not late:
                self.results[hook, "failed"] += 1
            if isinstance(error, DraKitError):
                raise
            raise self._problem(hook, error) from error
        else:
            if not late:
                self.results[hook, "ok"] += 1
            return returned
        finally:
            if alarm is not None:
                alarm.cancel()

    def _problem(self, hook: Hook, error: Exception) -> TransientError:
        module = type(self._hooks).__module__
        full, public = (
            f"{self._title(hook)} {describe_raised_error(error, module, public=public)}; the driver's log has the "
            "traceback"
            for public in (False, True)
        )
        return TransientError(full, code="author-error", public=public)

    def _title(self, hook: Hook) -> str:
        return f"{type(self._hooks).__name__}.{hook}"

    def _wrong(self, hook: Hook, returned: object, kind: type[Any]) -> InvalidPrepared:
        return InvalidPrepared(f"{self._title(hook)} returned a {type(returned).__name__}; return {_WRITE[kind]}")


def _key(device: HeldDevice[Any]) -> DeviceKey:
    return device.claim.uid, device.pool, device.name, device.share_id, device.request


def _about(pod: RuntimePod, devices: Sequence[HeldDevice[Any]]) -> log_context:
    """Return a context that adds pod, claims and devices to the log lines of the author's code."""
    claims = dict.fromkeys(str(device.claim) for device in devices)
    names = ",".join(dict.fromkeys(device.name for device in devices))
    return log_context(pod=str(pod), claim=",".join(claims) or None, device=names or None)


class StartedPods:
    """The sandboxes whose pod hook has succeeded in this boot: a file each, shared by the driver's processes."""

    def __init__(self, directory: Path, boot_id: str) -> None:
        self._directory = directory
        self._boot_id = boot_id

    def claims(self, sandbox: str) -> frozenset[str] | None:
        """Return the claims that the pod held when its hook succeeded; None if it has not succeeded.

        Raises:
            StoreError: that cannot be read.
        """
        try:
            content = json.loads(self._path(sandbox).read_text())
            return frozenset(content["claims"]) if content["boot"] == self._boot_id else None
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, LookupError, TypeError):  # the hook runs again
            return None
        except OSError as error:
            raise self._error(error) from error

    def add(self, sandbox: str, claims: Iterable[str]) -> None:
        """Record that the pod hook of a sandbox has succeeded.

        Raises:
            StoreError: that cannot be written.
        """
        path = self._path(sandbox)
        temporary = path.with_name(f".{path.name}")
        try:
            self._directory.mkdir(mode=0o750, parents=True, exist_ok=True)
            temporary.write_text(json.dumps({"boot": self._boot_id, "claims": sorted(claims)}))
            temporary.replace(path)
        except OSError as error:
            raise self._error(error) from error

    def remove(self, sandbox: str) -> None:
        """Forget a sandbox that has ended; a file that cannot be removed is removed by :meth:`retain`."""
        try:
            self._path(sandbox).unlink(missing_ok=True)
        except OSError as error:
            logger.warning("ended pod sandbox not forgotten", extra={"error": str(self._error(error))})

    def retain(self, sandboxes: Iterable[str]) -> None:
        """Forget all sandboxes but these.

        Raises:
            StoreError: that cannot be read.
        """
        known = set(sandboxes)
        try:
            names = os.listdir(self._directory)  # noqa: PTH208 - names are needed, not paths
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise self._error(error) from error
        for name in map(unquote, names):
            if name not in known:
                self.remove(name)

    def _path(self, sandbox: str) -> Path:
        return self._directory / quote(sandbox, safe="")

    def _error(self, error: OSError) -> StoreError:
        return StoreError(
            f"list of started pods {self._directory} cannot be read or written: {error.strerror or error}; check that "
            "the disk is writable and not full (--state-dir)"
        )
