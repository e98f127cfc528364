"""MIG: the mode of a GPU, GPU instances, and the compute instances in them."""
