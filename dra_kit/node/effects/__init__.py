"""Changes to hardware that outlive a call: written down, counted, undone."""
