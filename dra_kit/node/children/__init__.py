"""Programs that effects need: started, found again, supervised, ended (``dra_kit.ChildProcess``)."""
