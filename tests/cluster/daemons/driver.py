"""A device that a daemon shares; the container learns the daemon's process ID."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import dra_kit as dra


class Daemon(dra.ChildProcess, id="daemon"):
    """Says that it is ready by a file."""

    run_dir: str

    def keys(self) -> list[str]:
        return ["card/sharing"]

    def command(self) -> list[str]:
        return ["/bin/sh", "-c", f"echo up; echo $$ > {self.run_dir}/pid; exec sleep 100000"]

    def ready(self) -> bool:
        return Path(self.run_dir, "pid").exists()


class Rack(dra.DeviceProvider):
    """One card."""

    def discover(self) -> Iterator[Sequence[dra.Device]]:
        yield [dra.Device(name="card-0")]


class Sharer(dra.Preparer):
    """The card's daemon runs as long as the card is in use."""

    async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        running = await device.ensure(Daemon(run_dir=str(Path.cwd())))
        return dra.Prepared(env={"DAEMON_PID": str(running.pid)})


driver = dra.Driver("daemons.example", provider=Rack(), preparer=Sharer(), effects=[Daemon])
