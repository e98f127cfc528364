"""The node role (DaemonSet): answers the kubelet, stores claims, writes CDI specs, publishes ResourceSlices."""
