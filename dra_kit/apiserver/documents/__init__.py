"""What is served and is no resource: discovery, schemas, versions, health."""
