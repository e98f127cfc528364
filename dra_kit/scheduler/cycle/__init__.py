"""The scheduling cycle: which node a pod gets, and why."""
