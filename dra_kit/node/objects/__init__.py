"""Objects in the cluster that effects need (``dra_kit.ClusterObject``)."""
