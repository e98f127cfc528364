"""What an author's code does for the whole cluster, run in the controller: binding conditions and taint rules."""
