"""The author's preparer, run for one claim."""
