"""The screen of ``dra-kit dev``."""
