"""``python -m dra_kit`` is ``dra-kit``."""

import os
import sys

if not sys.flags.safe_path and sys.path[0] == os.getcwd():  # noqa: PTH109 - before anything else is imported
    # Python puts the working directory first, where any file would be taken for a module
    del sys.path[0]

from dra_kit.cli import main

if __name__ == "__main__":
    main()
