"""How the devices are: from the author's reports to taints, withdrawal and what the kubelet gets."""
