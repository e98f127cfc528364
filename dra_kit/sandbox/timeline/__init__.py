"""The timeline of a sandbox: what happened, recorded and reported."""
