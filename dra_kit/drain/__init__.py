"""Who still holds devices of a driver: asked before it is removed, or before a node is emptied."""
