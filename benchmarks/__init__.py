"""Speed and memory of the node role against a real API server: ``make bench``, with the budget next to each figure."""
