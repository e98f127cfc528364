"""A node with the bakery of the crash tests on it, and its invariants."""

from __future__ import annotations

import json
import secrets
import shutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from dra_kit.kubelet.cdi.store import spec_file_name
from dra_kit.kubelet.plugin_client import DeviceAnswer
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.state.store import dump_state
from tests.crash.invariants import problems_of
from tests.crash.world import DRIVER, Claim
from tests.life import manifests
from tests.life.cluster import Cluster
from tests.life.driver import STYLE, BakeryDriver
from tests.life.orders import Orders
from tests.life.switches import PATIENCE, Switches, until
from tests.support.files import files_below

PANS = 64
_TYPE = {"apiVersion", "kind"}


class Node:
    """One node, its driver and its orders; implements :class:`tests.crash.invariants.Observed`.

    Attributes:
        cluster: around it.
        driver: its process.
        orders: pods and claims.
        switches: of the author's code.
        claims: those that the kubelet was answered, by UID.
    """

    style = STYLE

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.node = cluster.node
        self.root = cluster.kubelet_dir
        self.cdi = cluster.cdi_dir
        self.state = self.root / "plugins" / DRIVER
        self.bakery = cluster.directory / "bakery"
        self.smoking: set[str] = set()
        self.menu = {self.node: {f"pan-{number}": "iron" for number in range(PANS)}}
        self.switches = Switches(self.bakery)
        (self.bakery / "hardware").mkdir()
        (self.bakery / "menu.json").write_text(json.dumps(self.menu))
        self.driver = BakeryDriver(cluster, str(self.bakery))
        self.orders = Orders(cluster, namespace)
        self.claims: dict[str, Claim] = {}
        self._others = self._all_files()

    @classmethod
    @contextmanager
    def open(cls, cluster: Cluster) -> Iterator[Node]:
        """The node, with a driver that has registered and published its pans; nothing of it is left in the end."""
        namespace = f"bakery-{secrets.token_hex(3)}"
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, cluster.directory / "bakery", ignore_errors=True)
            cluster.create([manifests.namespace(namespace), manifests.device_class(DRIVER)])
            stack.callback(cluster.delete, "namespace", [namespace])
            stack.callback(cluster.delete, "deviceclass", [manifests.CLASS])
            node = cls(cluster, namespace)
            try:
                node.driver.start()
                node.holds()
                cluster.writes.forget()  # the kubelet may have wiped what another test's driver had published
                yield node
            finally:
                node.settle()
                node.driver.close()
                names = [item["metadata"]["name"] for item in node.objects("resourceslices")]
                cluster.delete("resourceslice", names)
                shutil.rmtree(node.state, ignore_errors=True)

    # -- the kubelet

    def stop_kubelet(self, number: signal.Signals) -> None:
        """End the kubelet by a signal; it is gone when this returns."""
        self.cluster.stop_kubelet(number)

    def start_kubelet(self) -> None:
        """Start the kubelet, and wait until it knows the driver, if that runs."""
        before = self.driver.registrations() if self.driver.alive else 0
        self.cluster.start_kubelet()
        if self.driver.alive:
            self.driver.registered_again(before)

    def kubelet_knows(self) -> dict[str, list[str]]:
        """CDI devices by claim UID, from the kubelet's checkpoint (Kubernetes 1.34 to 1.37)."""
        data = json.loads(json.loads((self.root / "dra_manager_state").read_text())["Data"])
        states = {item["ClaimUID"]: item["DriverState"] for item in data["ClaimInfoStateList"] or ()}
        return {
            uid: [name for device in state[DRIVER]["Devices"] or () for name in device["CDIDeviceIDs"]]
            for uid, state in states.items()
            if DRIVER in state
        }

    def kubelet_forgets(self) -> None:
        """The kubelet, which does not run, loses what it knows of claims."""
        (self.root / "dra_manager_state").unlink()

    # -- orders

    def order(self, *names: str, **config: Any) -> list[str]:
        """Pods with a claim each, all made in one call; named so, or anyhow."""
        ordered = list(names) or self.orders.new_names(1)
        self.orders.create(ordered, config)
        return ordered

    def served(self, *names: str) -> None:
        """Wait until these pods run; then what each container has, the kubelet, and the driver must agree."""
        self.orders.wait_running(names)
        found = self.orders.claims()
        claims = [self._claim(found[name]) for name in names]
        answers = self._asked([claim.reference for claim in claims])
        for claim in claims:
            claim.answer = answers[claim.uid]
            self.claims[claim.uid] = claim
            self.container_has(claim)

    def _claim(self, raw: Mapping[str, Any]) -> Claim:
        metadata = raw["metadata"]
        results = raw["status"]["allocation"]["devices"]["results"]
        [entry] = raw["spec"]["devices"]["config"]
        config = {key: value for key, value in entry["opaque"]["parameters"].items() if key not in _TYPE}
        reference = ClaimReference(metadata["namespace"], metadata["name"], metadata["uid"])
        return Claim(reference, tuple(result["device"] for result in results), config)

    def container_has(self, claim: Claim) -> None:
        """What the container printed is what its CDI spec says."""
        spec = json.loads((self.cdi / spec_file_name(DRIVER, claim.uid)).read_text())
        edits = [spec["containerEdits"], *(device["containerEdits"] for device in spec["devices"])]
        wanted = {entry for item in edits for entry in item.get("env", [])}
        name = claim.reference.name
        until(f"{sorted(wanted)} in {name}", lambda: wanted <= set(self.orders.output(name)))

    def claim(self, name: str) -> Claim:
        """The claim of an order that was served."""
        [claim] = [claim for claim in self.claims.values() if claim.reference.name == name]
        return claim

    def gone(self, *names: str) -> None:
        """Wait until pods and claims are gone; the claims are to be released from now on."""
        self.orders.wait_gone(names)
        self.claims = {uid: claim for uid, claim in self.claims.items() if claim.reference.name not in names}

    def release(self, *names: str) -> None:
        """Delete pods and claims, and wait until they are gone."""
        self.orders.delete(names)
        self.gone(*names)

    def settle(self) -> None:
        """Put right what a scenario that failed has left; nothing when it ended in order."""
        names = sorted(self.orders.names)
        if not names and self.driver.alive:
            return
        self.cluster.start_api_server()
        self.cluster.start_kubelet()
        for name in names:
            self.switches.open_gate(name)
            self.switches.fail(name)
        if not self.driver.alive:
            self.driver.start()
        self.release(*names)
        self.cluster.writes.forget()

    # -- what must be true

    def check(self, *, within: float = PATIENCE, **writes: int) -> None:
        """Wait until everything is as it must be, and exactly these writes were needed for it.

        Args:
            within: seconds to wait.
            writes: how often what was written since the last check, with ``_`` for a space.

        Raises:
            AssertionError: with what is not, and the end of the driver's log.
        """
        self.holds(within=within)
        wanted = {name.replace("_", " "): number for name, number in writes.items() if number}
        until(f"{wanted} to be written", lambda: self._wrote(wanted), self.driver.tail)
        self.cluster.writes.forget()  # an unnecessary write may come later: the next check finds it

    def holds(self, *, within: float = PATIENCE) -> None:
        """Wait until the invariants hold; then claims must be answered as before, and no log have a traceback.

        Raises:
            AssertionError: with what is not, and the end of the driver's log.
        """
        problems = ["not looked yet"]

        def right() -> bool:
            nonlocal problems
            problems = [*problems_of(self), *self.driver.problems()]
            return not problems

        until("the node to be as it must be", right, lambda: "\n".join([*problems, self.driver.tail()]), within)
        answers = self._asked([claim.reference for claim in self.claims.values()])
        for claim in self.claims.values():
            answer = answers[claim.uid]
            assert answer == claim.answer, f"{claim.reference} was answered {claim.answer}, and now {answer}"
        assert not self.driver.tracebacks()

    def _wrote(self, wanted: Mapping[str, int]) -> bool:
        found = self.cluster.writes.since()
        surplus = {what: number for what, number in found.items() if number > wanted.get(what, 0)}
        assert not surplus, f"the driver wrote {dict(found)}, expected {dict(wanted)}\n{self.driver.tail()}"
        return dict(found) == wanted

    def _asked(self, references: Sequence[ClaimReference]) -> dict[str, tuple[DeviceAnswer, ...]]:
        """The driver's answers to one more call; the kubelet has the same in its own state."""
        if not references:
            return {}
        answers, known = self.driver.ask(references), self.kubelet_knows()
        for reference in references:
            answer = answers[reference.uid]
            assert not answer.error, f"{reference}: {answer.error}"
            told = [name for device in answer.devices for name in device.cdi_device_ids]
            has = known.get(reference.uid)
            assert has == told, f"{reference}: the kubelet has {has}, the driver answers {told}"
        return {uid: answer.devices for uid, answer in answers.items()}

    # -- what is there

    @property
    def pods(self) -> Sequence[str]:
        """See :class:`tests.crash.invariants.Observed`."""
        return [self.driver.pod_uid] if self.driver.alive else []

    def files(self) -> set[Path]:
        """See :class:`tests.crash.invariants.Observed`; what was there before the driver is not the driver's."""
        return self._all_files() - self._others

    def _all_files(self) -> set[Path]:
        return files_below(self.state.parent, self.root / "plugins_registry", self.cdi)

    def objects(self, plural: str) -> Sequence[Mapping[str, Any]]:
        """See :class:`tests.crash.invariants.Observed`."""
        if plural == "resourceslices":
            return self.cluster.objects("resourceslice", selector=f"spec.driver={DRIVER}")
        return self.cluster.objects("resourceclaim", self.orders.namespace)

    def dump(self) -> Mapping[str, Any]:
        """See :class:`tests.crash.invariants.Observed`."""
        return dump_state(self.state / "state.sqlite")

    def node_uid(self) -> str:
        """UID of the Node; empty while there is none."""
        found = self.cluster.objects("node", selector=f"metadata.name={self.node}")
        return str(found[0]["metadata"]["uid"]) if found else ""

    def slice_owners(self) -> list[str]:
        """UIDs of what the slices belong to."""
        slices = self.objects("resourceslices")
        return [owner["uid"] for item in slices for owner in item["metadata"]["ownerReferences"]]
