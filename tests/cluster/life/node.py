"""A real node with the bakery of the crash tests on it, and what must be true of it."""

from __future__ import annotations

import json
import secrets
import shutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from dra_kit.cdi.names import spec_file_name
from dra_kit.kubelet.plugin import Device
from dra_kit.node.dump import dump_state
from dra_kit.resource.reference import ClaimReference
from tests.cluster.access import Access, granted
from tests.cluster.life import manifests
from tests.cluster.life.driver import KUBELET_DIR, STYLE, BakeryDriver
from tests.cluster.life.orders import Orders
from tests.cluster.life.switches import PATIENCE, Switches, until
from tests.cluster.life.writes import Writes
from tests.cluster.node_driver import CDI_DIR
from tests.cluster.plane import Plane
from tests.crash.invariants import problems_of
from tests.crash.world import DRIVER, Claim

PANS = 64
_TYPE = {"apiVersion", "kind"}


class Node:
    """One node, its driver and its orders; implements :class:`tests.crash.invariants.Observed`.

    Attributes:
        driver: its process.
        orders: pods and claims.
        switches: of the author's code.
        writes: what the driver wrote to the API server.
        claims: those that the kubelet was answered, by UID.
    """

    root = KUBELET_DIR
    cdi = CDI_DIR
    state = KUBELET_DIR / "plugins" / DRIVER
    style = STYLE

    def __init__(self, plane: Plane, access: Access, namespace: str) -> None:
        assert plane.node is not None
        self.plane = plane
        self.node = plane.node
        self.bakery = plane.directory / "bakery"
        self.menu = {self.node: {f"pan-{number}": "iron" for number in range(PANS)}}
        self.switches = Switches(self.bakery)
        (self.bakery / "hardware").mkdir()
        (self.bakery / "menu.json").write_text(json.dumps(self.menu))
        self.driver = BakeryDriver(plane, access, self.bakery)
        self.orders = Orders(plane, namespace)
        self.writes = Writes(plane)
        self.claims: dict[str, Claim] = {}
        self._others = self._all_files()

    @classmethod
    @contextmanager
    def open(cls, plane: Plane) -> Iterator[Node]:
        """The node, with a driver that has registered and published its pans; nothing of it is left in the end."""
        namespace = f"bakery-{secrets.token_hex(3)}"
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, plane.directory / "bakery", ignore_errors=True)
            access = stack.enter_context(granted(plane, release="dra-bakery", driver=DRIVER))
            stack.enter_context(_created(plane, manifests.namespace(namespace), manifests.device_class(DRIVER)))
            node = cls(plane, access, namespace)
            account = {"namespace": access.namespace, "account": f"{access.release}-node"}
            node.writes = stack.enter_context(Writes.of(plane, **account, kubeconfig=node.driver.kubeconfig))
            try:
                node.driver.start()
                node.holds()
                node.writes.forget()  # the kubelet may have wiped what another test's driver had published
                yield node
            finally:
                node.settle()
                node.driver.close()
                plane.kubectl("delete", "resourceslices", "--field-selector", f"spec.driver={DRIVER}")
                shutil.rmtree(node.state, ignore_errors=True)

    # -- the kubelet

    def stop_kubelet(self, number: signal.Signals) -> None:
        """End the kubelet by a signal; it is gone when this returns."""
        self.plane.component("stop", "kubelet", signal_name=number.name.removeprefix("SIG"))

    def start_kubelet(self) -> None:
        """Start the kubelet, and wait until it knows the driver, if that runs."""
        before = self.driver.registrations() if self.driver.alive else 0
        self.plane.component("start", "kubelet")
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
        self.orders.wait(*(f"pod/{name}" for name in names), "--for=jsonpath={.status.phase}=Running")
        for name in names:
            raw = self.orders.claim(name)
            reference = ClaimReference(self.orders.namespace, name, raw["metadata"]["uid"])
            results = raw["status"]["allocation"]["devices"]["results"]
            [entry] = raw["spec"]["devices"]["config"]
            config = {key: value for key, value in entry["opaque"]["parameters"].items() if key not in _TYPE}
            claim = Claim(reference, tuple(result["device"] for result in results), config)
            claim.answer = tuple(self._asked(reference))
            self.claims[claim.uid] = claim
            self.container_has(claim)

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
        for part in ("kube-apiserver", "kubelet"):
            self.plane.component("start", part)
        for name in names:
            self.switches.open_gate(name)
            self.switches.fail(name)
        if not self.driver.alive:
            self.driver.start()
        self.api_server_answers()
        self.release(*names)
        self.writes.forget()

    def api_server_answers(self) -> None:
        """Wait until the API server is ready."""
        until("the API server", lambda: not self.plane.kubectl("get", "--raw", "/readyz", check=False).returncode)

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
        until(f"{wanted} to be written", lambda: self._wrote(wanted), self._log)
        self.writes.forget()  # a write that nobody needs may come later: the next check finds it

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

        until("the node to be as it must be", right, lambda: "\n".join([*problems, self._log()]), within)
        for claim in self.claims.values():
            answer = tuple(self._asked(claim.reference))
            assert answer == claim.answer, f"{claim.reference} was answered {claim.answer}, and now {answer}"
        assert not self.driver.tracebacks()

    def _wrote(self, wanted: Mapping[str, int]) -> bool:
        found = self.writes.since()
        surplus = {what: number for what, number in found.items() if number > wanted.get(what, 0)}
        assert not surplus, f"the driver wrote {dict(found)}, expected {dict(wanted)}\n{self._log()}"
        return dict(found) == wanted

    def _log(self) -> str:
        return self.driver.process.tail() if self.driver.alive else "the driver does not run"

    def _asked(self, reference: ClaimReference) -> Sequence[Device]:
        """The driver's answer to one more call; the kubelet has the same in its own state."""
        devices = self.driver.ask(reference)
        known = self.kubelet_knows().get(reference.uid)
        told = [name for device in devices for name in device.cdi_device_ids]
        assert known == told, f"{reference}: the kubelet has {known}, the driver answers {told}"
        return devices

    # -- what is there

    @property
    def pods(self) -> Sequence[str]:
        """See :class:`tests.crash.invariants.Observed`."""
        return [self.driver.pod_uid] if self.driver.alive else []

    def files(self) -> set[Path]:
        """See :class:`tests.crash.invariants.Observed`; what was there before the driver is not the driver's."""
        return self._all_files() - self._others

    def _all_files(self) -> set[Path]:
        tops = (self.state.parent, self.root / "plugins_registry", self.cdi)
        return {path for top in tops for path in top.rglob("*") if not path.is_dir()}

    def objects(self, plural: str) -> Sequence[Mapping[str, Any]]:
        """See :class:`tests.crash.invariants.Observed`."""
        slices = ["--field-selector", f"spec.driver={DRIVER}"]
        where = slices if plural == "resourceslices" else ["--namespace", self.orders.namespace]
        items: list[Mapping[str, Any]] = self.plane.get(plural, *where)["items"]
        return items

    def dump(self) -> Mapping[str, Any]:
        """See :class:`tests.crash.invariants.Observed`."""
        return dump_state(self.state / "state.sqlite")

    def node_uid(self) -> str:
        """UID of the Node; empty while there is none."""
        arguments = ("get", "node", self.node, "--ignore-not-found", "-o", "jsonpath={.metadata.uid}")
        return self.plane.kubectl(*arguments).stdout

    def slice_owners(self) -> list[str]:
        """UIDs of what the slices belong to."""
        slices = self.objects("resourceslices")
        return [owner["uid"] for item in slices for owner in item["metadata"]["ownerReferences"]]


@contextmanager
def _created(plane: Plane, *items: Mapping[str, Any]) -> Iterator[None]:
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    plane.kubectl("create", "-f", "-", stdin=text)
    try:
        yield
    finally:
        plane.kubectl("delete", "-f", "-", "--ignore-not-found", stdin=text)
