"""kopf's watch of claims, as a part of the controller."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from dra_kit.controller import handlers
from dra_kit.controller.claims.follower import ClaimFollower
from dra_kit.kube.connection.credentials import Credentials
from dra_kit.kube.operator.operator import OperatorThread, kopf, quiet_settings

_PAGE: Final = 500  # objects per page of kopf's list
# kopf has a task for each object of its initial list, for 5 s after its event: with 10,000 claims that is 80 MiB
_WORKERS: Final = 100
_IDLE_SECONDS: Final = 0.1


class ClaimWatch:
    """Runs kopf for the follower.

    It has one life: kopf that ended may have lost what it watched, and the pod starts again from a list.

    Args:
        credentials: of the process.
        follower: what the events are for.
    """

    name = "kopf"

    def __init__(self, credentials: Credentials, follower: ClaimFollower) -> None:
        self._credentials = credentials
        self._follower = follower

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; ready when claims are watched: from then on nothing is missed.

        Raises:
            KubeError: what ended kopf.
        """
        loop = asyncio.get_running_loop()

        def build() -> tuple[kopf.OperatorRegistry, kopf.OperatorSettings]:
            registry = kopf.OperatorRegistry()
            handlers.register(registry, self._follower, loop)
            settings = quiet_settings(chunk_size=_PAGE)
            settings.queueing.worker_limit = _WORKERS
            settings.queueing.idle_timeout = _IDLE_SECONDS
            return registry, settings

        def watching() -> None:
            ready.set()
            self._follower.look_again()

        def notify() -> None:
            with suppress(RuntimeError):  # the process has ended, kopf's thread has not
                loop.call_soon_threadsafe(watching)

        await OperatorThread(self._credentials, build, backoff=(), events_only=True, watching=notify).run(
            asyncio.Event()
        )
