"""The node's answers to the kubelet: claims prepared and released, one at a time each, durably and repeatably.

One NodePrepareResources goes from :meth:`ClaimService.prepare` through :mod:`dra_kit.node.claims.preparing`, which
asks :mod:`dra_kit.node.claims.author.preparation` to run the author's code; one NodeUnprepareResources through
:mod:`dra_kit.node.claims.releases`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from dra_kit.errors import DraKitError
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.calls.concurrency import Turns
from dra_kit.node.calls.deadlines import Calls
from dra_kit.node.calls.failures import log_failure
from dra_kit.node.claims.author.preparation import Preparation
from dra_kit.node.claims.durable import DurableClaims
from dra_kit.node.claims.epochs import Epochs
from dra_kit.node.claims.holders.exclusive import ExclusiveDevices
from dra_kit.node.claims.holders.reallocated import Reallocated
from dra_kit.node.claims.preparing import Preparing
from dra_kit.node.claims.reader import ClaimReader, Getter
from dra_kit.node.claims.releases import Releases
from dra_kit.node.claims.reports.facts import LateFacts
from dra_kit.node.claims.reports.news import ClaimNews
from dra_kit.node.claims.unasked import Unasked
from dra_kit.node.files.claim_files import ClaimFiles
from dra_kit.node.locks.named import NodeLocks
from dra_kit.node.state.store import Store
from dra_kit.plugin.service import PreparedDevice
from dra_kit.process.logging import log_context
from dra_kit.process.tracing import span

logger: logging.Logger = logging.getLogger(__name__)

Answer = Sequence[PreparedDevice]


class ClaimService:
    """Implements :class:`dra_kit.plugin.service.NodeService`.

    Args:
        preparation: runs the author's code.
        api: reads claims.
        store: the durable records.
        files: the CDI and metadata files of claims.
        locks: hold across the driver's processes on this node.
        news: learns what became of claims.
        reallocated: keeps what claims were prepared with that were allocated anew.
        deadline: seconds after which the kubelet is answered, whatever still runs.

    Attributes:
        epochs: which claims are being prepared.
        unasked: work that the kubelet has not asked for.
        facts: what becomes known of devices later.
    """

    def __init__(
        self,
        preparation: Preparation,
        *,
        api: Getter,
        store: Store,
        files: ClaimFiles,
        locks: NodeLocks,
        news: ClaimNews,
        reallocated: Reallocated,
        deadline: float,
    ) -> None:
        driver = preparation.driver
        reader = ClaimReader(api, driver.name)
        turns = Turns(driver.concurrency, locks.calls)
        durable = DurableClaims(store, files)
        self._preparation = preparation
        self._claims = locks.claims
        self._news = news
        self._calls = Calls(deadline, at_rest=store.at_rest)
        self._releases = Releases(preparation, durable, turns, news)
        self.epochs: Epochs = Epochs(store, locks.claims)
        self._preparing = Preparing(
            reader=reader,
            preparation=preparation,
            durable=durable,
            claims=locks.claims,
            epochs=self.epochs,
            exclusive=ExclusiveDevices(
                driver.name,
                api=api,
                store=store,
                boot_id=preparation.boot_id,
                claims=locks.claims,
                devices=locks.devices,
                release=self._releases.of_record,
            ),
            turns=turns,
            reallocated=reallocated,
            releases=self._releases,
            news=news,
        )
        self.unasked: Unasked = Unasked(
            preparation, reader, self._releases, durable, claims=locks.claims, calls=self._calls, news=news
        )
        self.facts: LateFacts = LateFacts(durable, locks.claims, self.epochs, news)
        news.released.listen(reader.forget)
        news.released.listen(reallocated.forget)

    async def prepare(self, claims: Sequence[ClaimReference]) -> dict[str, Answer | Exception]:
        """See :class:`dra_kit.plugin.service.NodeService`."""
        calls = [self._begin_prepare(claim) for claim in claims]
        return {claim.uid: await call for claim, call in zip(claims, calls, strict=True)}

    def prepare_again(self, reference: ClaimReference) -> asyncio.Future[Answer | Exception]:
        """Prepare a claim that the kubelet does not ask for, if it is prepared; an exception is an answer, too."""
        return self._begin_prepare(reference, again=True)

    def _begin_prepare(self, reference: ClaimReference, *, again: bool = False) -> asyncio.Future[Answer | Exception]:
        name = str(reference)

        async def prepare() -> Answer | Exception:
            with span("prepare claim", claim=name, claim_uid=reference.uid):
                record = await self._preparing.prepare(reference, again=again)
            return record.answer() if record is not None else []

        def failed(error: Exception) -> Exception:
            problem = self._failed(error, "claim not prepared")
            self._news.failed.notify(reference, problem)
            return problem

        def late() -> str:
            why = self._preparation.lacking(reference) or "what is still running is rolled back when it ends"
            return f"not prepared within {self._calls.deadline:g} s: {why}; the kubelet tries again"

        with log_context(claim=name, claim_uid=reference.uid):
            return self._calls.begin(prepare(), failed=failed, late=late)

    async def unprepare(self, claims: Sequence[ClaimReference]) -> dict[str, Exception | None]:
        """See :class:`dra_kit.plugin.service.NodeService`."""
        calls = [self._begin_unprepare(claim) for claim in claims]
        return {claim.uid: await call for claim, call in zip(claims, calls, strict=True)}

    def _begin_unprepare(self, reference: ClaimReference) -> asyncio.Future[Exception | None]:
        name = str(reference)

        async def unprepare() -> None:
            with span("release claim", claim=name, claim_uid=reference.uid):
                await self._release(reference)

        def failed(error: Exception) -> Exception:
            return self._failed(error, "claim not released")

        late = f"not released within {self._calls.deadline:g} s; what holds it up goes on; the kubelet tries again"
        with log_context(claim=name, claim_uid=reference.uid):
            return self._calls.begin(unprepare(), failed=failed, late=lambda: late)

    async def _release(self, reference: ClaimReference) -> None:
        async with self._claims.try_hold(reference.uid) as alone:
            if alone:  # nobody prepares it now, so that there is nothing to end: one look at the locks less
                await self._releases.release(reference)
                return
        await self.epochs.end(reference.uid)
        async with self._claims.hold(reference.uid):
            await self._releases.release(reference)

    def _failed(self, error: Exception, message: str) -> DraKitError:
        return log_failure(error, message, module=type(self._preparation.driver.preparer).__module__, logger=logger)

    async def drain(self, grace: float) -> None:
        """Wait for what runs, at most ``grace`` seconds, then give up on it."""
        await self._calls.drain(grace)
