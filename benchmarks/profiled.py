"""``python -m benchmarks.profiled FILE ARGUMENT…``: ``dra-kit``, profiled by CPU time of its main thread."""

from __future__ import annotations

import cProfile
import sys
import time

from dra_kit.cli import main

if __name__ == "__main__":
    _, path, *arguments = sys.argv
    sys.argv = ["dra-kit", *arguments]
    profile = cProfile.Profile(time.thread_time)
    try:
        profile.runcall(main)
    finally:
        profile.dump_stats(path)
