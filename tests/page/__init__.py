"""The page of a sandbox in a headless Chromium (``make test-page``)."""
