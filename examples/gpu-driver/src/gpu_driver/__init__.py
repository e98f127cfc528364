"""The gpu.nvidia.com DRA driver."""
