"""How the kubelet's calls run: under a deadline, in bursts, one after another where the driver says so."""
