"""Selection of nodes for pods, and the rules of the claim and taint controllers.

Each module is named after the plugin step or the controller of Kubernetes whose rules it has. No I/O.
"""
