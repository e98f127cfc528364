"""Deployments, ReplicaSets, DaemonSets and StatefulSets: pure plans, and one controller that carries them out."""
