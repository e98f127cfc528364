"""The node role (DaemonSet): answers the kubelet, keeps claims, writes CDI, publishes ResourceSlices."""
