"""From the author's inventory to published ResourceSlices."""
