"""``python -m gpu_driver.show FOLDER``: watch what is done to the pretended GPUs whose state is kept in a folder."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

from gpu_driver.nvml.backend import NvmlBackend
from gpu_driver.nvml.fake.fake import FakeNvml
from gpu_driver.nvml.fake.profile import load

_USAGE = "usage: python -m gpu_driver.show FOLDER PROFILE   (those of --fake-folder and --fake-gpus)"
_NONE = "."


def lines(nvml: NvmlBackend) -> Iterator[str]:
    """One line for each GPU whose MIG mode is on: its memory slices, and which partition is on them."""
    for facts in nvml.gpus():
        if not facts.mig_capable or not nvml.mig_mode(facts.uuid).current:
            continue
        profiles = {profile.id: profile for profile in nvml.gpu_instance_profiles(facts.uuid)}
        slices = [_NONE] * max(place.start + place.size for item in profiles.values() for place in item.placements)
        named = []
        for number, instance in enumerate(nvml.gpu_instances(facts.uuid), start=1):
            place = instance.placement
            slices[place.start : place.start + place.size] = [str(number)] * place.size
            made = ", ".join(compute.mig_uuid[:12] for compute in instance.compute_instances) or "no compute instance"
            named.append(f"{number}: {profiles[instance.profile_id].name} ({made})")
        yield f"gpu-{facts.minor} [{' '.join(slices)}] {'; '.join(named) or 'MIG mode is on, no partition'}"


def main(arguments: list[str]) -> int:
    """Print them whenever they change, until the process is ended; the exit code."""
    if len(arguments) != 2:
        print(_USAGE, file=sys.stderr)
        return 2
    nvml = FakeNvml(load(arguments[1]), Path(arguments[0]))
    before: list[str] | None = None
    seen: object = "nothing"
    while True:
        seen, last = nvml.state.version(), seen
        if seen != last:
            now = list(lines(nvml))
            if now != before:
                print("\n".join(f"  GPUs | {line}" for line in now or ["no GPU is divided"]), flush=True)
            before = now
        time.sleep(0.02)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(0)
