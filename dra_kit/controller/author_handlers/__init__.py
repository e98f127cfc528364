"""The author's own kopf handlers, in the active replica."""
