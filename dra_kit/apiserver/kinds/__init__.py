"""What is served: one entry for each kind, with the strategy that is its own."""
