"""Changes to hardware that outlive a call: recorded, counted, verified, undone."""
