"""The helm chart of a driver: its values as a model, what is made of them, and the chart of one driver."""
