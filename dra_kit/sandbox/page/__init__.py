"""The page of a sandbox: what it receives of a timeline, and the server in front of it; ``assets`` has the page."""
