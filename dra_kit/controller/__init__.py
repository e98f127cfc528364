"""The controller role (Deployment): follows the life of claims that hold our devices."""
