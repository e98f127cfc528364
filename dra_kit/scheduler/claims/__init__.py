"""Claims: made for a pod, known to the scheduler, ready on a node, released."""
