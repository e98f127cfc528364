"""The table of devices in use follows the records of claims, and so does what is in memory."""

from __future__ import annotations

import asyncio
import gc
import tempfile
from pathlib import Path

import pytest
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


def in_memory(uid: str) -> list[ClaimRecord]:
    gc.collect()
    return [item for item in gc.get_objects() if isinstance(item, ClaimRecord) and item.uid == uid]


@pytest.mark.parametrize("by_another_process", [False, True])
async def test_no_record_of_a_released_claim_is_in_memory(path: Path, by_another_process: bool) -> None:
    store, other = StateStore(path), StateStore(path)
    uid = f"released-by-another-{by_another_process}"
    try:
        await store.put_claim(
            ClaimRecord(namespace="default", name="lunch", uid=uid, allocation="a", boot_id="b"),
            epoch=store.epoch(),
            then=written,
        )
        [known] = store.claims()
        assert store.claim(uid) is known, "an unchanged record is read only once"
        await store.begin_release(known)
        del known
        releasing = store.claim(uid)
        assert releasing is not None
        assert releasing.phase == "releasing"
        assert {item.phase for item in in_memory(uid)} == {"releasing"}
        del releasing
        await (other if by_another_process else store).forget_claim(uid, first=written)
        if by_another_process:
            await store.forget_epoch(uid)  # the thread that writes holds what it has last written
            assert store.claims() == []
        assert in_memory(uid) == []
    finally:
        other.close()
        store.close()
