"""A sandbox that a user runs: in the foreground, or detached."""
