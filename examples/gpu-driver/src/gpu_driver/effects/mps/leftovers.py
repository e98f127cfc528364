"""MPS folders that no effect removes any more: the driver's state was lost, and their records with it."""

import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import dra_kit as dra

from gpu_driver.effects.mps.control import SOCKETS
from gpu_driver.effects.mps.daemon import MpsDaemon
from gpu_driver.effects.mps.paths import MakeMpsFolder, MpsFolder, is_name, lock_folders
from gpu_driver.effects.mps.pod import MpsPod
from gpu_driver.host.sockets import is_served

log = logging.getLogger(__name__)

_UNTOUCHED = 600.0
"""Seconds without a change in a folder: twice the longest time for which the kubelet holds back a container that ends
again and again, so that a daemon between two starts keeps its folder."""

_CLOCKS = 5.0
"""Seconds by which the time of a change may be ahead, since the kernel and this process read clocks of their own."""


def remove_leftovers(root: Path, effects: Callable[[], Iterable[dra.EffectInForce]]) -> None:
    """Remove the folders that no effect names and no daemon uses.

    Args:
        root: of the folders.
        effects: of this driver on this node, whatever their state. Asked under the lock under which folders are made:
            the effect that makes one is recorded before.
    """
    if not root.is_dir():
        return
    try:
        with lock_folders(root):
            named = {path for known in effects() if (path := _folder(known.effect)) is not None}
            for path in sorted(root.iterdir()):
                if is_name(path.name) and path not in named and not _is_used(MpsFolder(path=path)):
                    MpsFolder(path=path).remove()
                    log.warning("MPS folder %s removed: no claim needs it, and no daemon uses it", path)
    except OSError as error:
        log.warning("MPS folders in %s not looked through: %s", root, error)


def _folder(effect: object) -> Path | None:
    return effect.folder.path if isinstance(effect, MakeMpsFolder | MpsDaemon | MpsPod) else None


def _is_used(folder: MpsFolder) -> bool:
    if any(is_served(folder.pipe / name) for name in SOCKETS):
        return True
    now = time.time()
    changed = [path.stat().st_mtime for path in (folder.path, folder.pipe, folder.log) if path.exists()]
    # a container may give the folder of the sockets a time that is still to come
    return any(now - _UNTOUCHED < time_of_change <= now + _CLOCKS for time_of_change in changed)
