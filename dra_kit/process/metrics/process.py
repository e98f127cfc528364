"""Numbers that the processes of all roles have."""

from __future__ import annotations

from collections.abc import Iterator

from dra_kit import __version__
from dra_kit.kube.client import Client
from dra_kit.process.metrics import families
from dra_kit.process.metrics.families import Reading, Role
from dra_kit.process.supervisor import State, Supervisor
from dra_kit.process.watchdog import Watchdog


def process_readings(
    role: Role, client: Client | None, supervisor: Supervisor, watchdog: Watchdog
) -> Iterator[Reading]:
    """Yield the readings of now; from any thread.

    Args:
        role: of the process.
        client: of the API server; None where none is kept.
        supervisor: runs the parts of the process.
        watchdog: of the event loop.
    """
    yield families.BUILD_INFO.of(1, __version__, role)
    for (verb, code), count in list(client.answers.items()) if client is not None else ():
        yield families.API_REQUESTS.of(count, verb, code)
    yield families.LOOP_LAG_SECONDS.of(watchdog.lag)
    for name, part in supervisor.status().items():
        yield families.PART_READY.of(int(part.state is State.READY), name)
