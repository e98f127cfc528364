"""Stories: a folder of manifests, steps and expectations."""
