"""The table of devices in use follows the records of claims."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from dra_kit.node.state.records import ClaimRecord, DeviceRecord
from dra_kit.node.state.store import StateStore

POOLS, DEVICES = ("node-1", "cellar"), ("pizza-0", "pizza-1")
RESULTS = st.builds(
    DeviceRecord,
    request=st.sampled_from(("dinner", "look")),
    pool=st.sampled_from(POOLS),
    device=st.sampled_from(DEVICES),
    share_id=st.sampled_from((None, "share-1")),
    admin_access=st.booleans(),
)
STEPS = st.tuples(st.sampled_from(("uid-1", "uid-2")), st.none() | st.lists(RESULTS, max_size=4))


def written(_: ClaimRecord | str) -> None:
    """Write no files."""


@given(st.lists(STEPS, max_size=10))
def test_holders_of_a_device_match_the_records(steps: list[tuple[str, list[DeviceRecord] | None]]) -> None:
    async def play(store: StateStore) -> None:
        stored: dict[str, list[DeviceRecord]] = {}
        for uid, devices in steps:
            if devices is None:
                stored.pop(uid, None)
                await store.forget_claim(uid, first=written)
            else:
                stored[uid] = devices
                record = ClaimRecord(
                    namespace="default", name="lunch", uid=uid, allocation="a", boot_id="b", devices=tuple(devices)
                )
                await store.put_claim(record, epoch=store.epoch(), then=written)
            for pool in POOLS:
                for device in DEVICES:
                    holders = {
                        holder
                        for holder, items in stored.items()
                        for item in items
                        if (item.pool, item.device) == (pool, device) and not item.admin_access and not item.share_id
                    }
                    assert {record.uid for record in store.holders(pool, device)} == holders

    with tempfile.TemporaryDirectory() as directory:
        store = StateStore(Path(directory) / "state.sqlite")
        try:
            asyncio.run(play(store))
        finally:
            store.close()
