"""``python -m benchmarks.touched FILE ARGUMENT…``: ``dra-kit``, recording the Python functions that it calls.

With each SIGUSR1 it writes to FILE what it has run through since the one before.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType


class Touched:
    """The functions that were called, in all threads started from now on, and the JSON that was read."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._seen: set[CodeType] = set()
        self._decoded = 0

    def begin(self) -> None:
        decode = json.JSONDecoder.decode

        def counted(decoder: json.JSONDecoder, text: str, *arguments: object) -> object:
            self._decoded += len(text)
            return decode(decoder, text, *arguments)  # type: ignore[arg-type]

        json.JSONDecoder.decode = counted  # type: ignore[method-assign, assignment]
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        signal.signal(signal.SIGUSR1, self._tell)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            self._seen.add(frame.f_code)

    def _tell(self, *_: object) -> None:
        seen, self._seen = self._seen, set()
        decoded, self._decoded = self._decoded, 0
        found = {"functions": sorted({f"{code.co_filename}:{code.co_firstlineno}" for code in seen}), "json": decoded}
        unfinished = self._file.with_suffix(".new")
        unfinished.write_text(json.dumps(found))
        unfinished.replace(self._file)


if __name__ == "__main__":
    _, path, *arguments = sys.argv
    sys.argv = ["dra-kit", *arguments]
    Touched(Path(path)).begin()
    from dra_kit.cli import main  # its decoder of JSON is made while it is imported

    main()
