"""What there is: nodes, pools, devices, and what claims hold of them."""
