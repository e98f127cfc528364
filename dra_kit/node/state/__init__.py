"""The node's durable state: records, their database, its damage and repair."""
