"""The confirmation that nothing of a driver is left on a node: a condition of the undertaker's own pod.

Everything that waits for a removal reads it: ``dra-kit drain``, the chart's guard, and
``kubectl wait --for=condition=dra-kit/Undertaken pod --selector …``.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import Final

from msgspec import Struct

from dra_kit.errors import ConfigurationError, DraKitError
from dra_kit.kube.client import STRATEGIC_MERGE_PATCH, Client
from dra_kit.kube.resources import PODS, UNDERTAKEN

logger: logging.Logger = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 2.0
_MESSAGE_CHARACTERS: Final = 1024


class PodName(Struct, frozen=True):
    """The pod that an undertaker runs in.

    Attributes:
        namespace: of the pod.
        name: of the pod.
    """

    namespace: str
    name: str

    @classmethod
    def parse(cls, text: str) -> PodName:
        """Return the pod of ``NAMESPACE/NAME``.

        Raises:
            ConfigurationError: the text has another form.
        """
        namespace, slash, name = text.partition("/")
        if not (namespace and slash and name) or "/" in name:
            raise ConfigurationError(f"--pod {text!r} is not a pod; write NAMESPACE/NAME")
        return cls(namespace, name)


class Confirmation:
    """Keeps the pod's condition at what was set last, and retries while the API server does not answer.

    Args:
        client: needs ``patch`` on pods/status of this pod.
        pod: the undertaker's own pod.
    """

    def __init__(self, client: Client, pod: PodName) -> None:
        self._client = client
        self._pod = pod
        self._wanted: tuple[bool, str] | None = None
        self._changed = asyncio.Event()
        self._logged = ""

    def set(self, done: bool, message: str) -> None:
        """Set what the condition says.

        Args:
            done: whether nothing is left.
            message: what is left, for people.
        """
        wanted = done, message[:_MESSAGE_CHARACTERS]
        if wanted != self._wanted:
            self._wanted = wanted
            self._changed.set()

    async def run(self) -> None:
        """Write each change, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._write()
            except DraKitError as error:
                self._report(error)
                self._changed.set()
                await asyncio.sleep(_RETRY_SECONDS)

    async def _write(self) -> None:
        if self._wanted is None:
            return
        done, message = self._wanted
        condition = {
            "type": UNDERTAKEN,
            "status": "True" if done else "False",
            "reason": "NothingLeft" if done else "Undertaking",
            "message": message,
            "lastTransitionTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        await self._client.patch(
            PODS, self._pod.name, {"status": {"conditions": [condition]}}, self._pod.namespace,
            content_type=STRATEGIC_MERGE_PATCH, subresource="status",
        )  # fmt: skip
        self._logged = ""
        if done:
            logger.info("removal confirmed", extra={"pod": f"{self._pod.namespace}/{self._pod.name}"})

    def _report(self, error: DraKitError) -> None:
        if str(error) != self._logged:
            logger.error("removal not confirmed", extra={"error": str(error), "code": error.code})
        self._logged = str(error)
