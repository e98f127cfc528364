"""``python -m dra_kit`` is ``dra-kit``."""

from dra_kit.cli import main

if __name__ == "__main__":
    main()
