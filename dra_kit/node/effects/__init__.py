"""Changes to hardware that outlive a call: recorded, reference-counted, verified, reverted."""
