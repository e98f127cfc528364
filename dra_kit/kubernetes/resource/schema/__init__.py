"""Fields of all kinds as one table, and decoding by it."""
