"""The objects of a cluster that explanations look at."""
