"""Changes to hardware that outlive a call: effects, child processes, objects in the cluster."""
