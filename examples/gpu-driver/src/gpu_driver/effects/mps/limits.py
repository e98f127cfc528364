"""Limits of an MPS control daemon's clients: set and read back, since some are ignored without an error."""

import re
from collections.abc import Mapping

import dra_kit as dra
from pydantic import BaseModel, ConfigDict

from gpu_driver.effects.mps.control import MpsControl

_MEBIBYTES = {"M": 1, "G": 2**10}


class Limits(BaseModel):
    """What each client may use.

    Attributes:
        percentage: of the threads of a GPU; None for all.
        memory: as MPS takes it (``6144M``), by the index of the GPU among the daemon's ``CUDA_VISIBLE_DEVICES``.
            Older releases ignore limits by UUID (k8s-device-plugin#572); 580 obeys both.
    """

    model_config = ConfigDict(frozen=True)

    percentage: int | None = None
    memory: Mapping[int, str] = {}

    def set_in(self, control: MpsControl) -> None:
        """Set the limits and read them back.

        Raises:
            MpsError: the daemon does not answer.
            PermanentError: it has other limits afterwards.
        """
        if self.percentage is not None:
            answer = control.ask(f"set_default_active_thread_percentage {self.percentage}")
            found = control.ask("get_default_active_thread_percentage")
            if _number(found) != self.percentage:
                raise _ignored(f"active thread percentage {self.percentage}", found, answer)
        for index, limit in self.memory.items():
            answer = control.ask(f"set_default_device_pinned_mem_limit {index} {limit}")
            found = control.ask(f"get_default_device_pinned_mem_limit {index}")
            if not _is_shown_as(found, limit):
                raise _ignored(f"pinned memory limit {limit} of device {index}", found, answer)


def _number(answer: str) -> float | None:
    found = re.search(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*%?\s*$", answer)
    return None if found is None else float(found[1])


def _is_shown_as(found: str, limit: str) -> bool:
    """Return whether MPS shows this limit so: in whole GiB where it has one, the rest dropped (``6145M`` as ``6G``)."""
    size, shown = (re.fullmatch(r"([0-9]{1,18})([MG])", text) for text in (limit, found.strip()))
    if size is None or shown is None:
        return False
    mebibytes, unit = int(size[1]) * _MEBIBYTES[size[2]], _MEBIBYTES[shown[2]]
    return mebibytes // unit == int(shown[1])


def _ignored(what: str, found: str, answer: str) -> dra.PermanentError:
    has, answered = (" ".join(text.split())[:200] for text in (found, answer))
    return dra.PermanentError(
        f"MPS did not take the {what}: it has {has or 'none'} and answered {answered or 'nothing'}; "
        "correct mpsConfig, or see whether this GPU's driver has the limit"
    )
