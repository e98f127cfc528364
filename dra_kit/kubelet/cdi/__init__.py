"""Container Device Interface: the spec, its validation, the directory of spec files, and resolution."""
