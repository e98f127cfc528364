"""Which devices a node has: whole GPUs, MIG partitions, GPUs in passthrough, and what monitors them."""
