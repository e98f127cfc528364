"""The kubelet's DRA manager: finds drivers, registers and calls them, remembers their claims."""
