"""The node's durable state: records, their database, its corruption and repair."""
