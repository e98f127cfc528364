"""The database file: where it is, how it is opened, its form, its log and its transactions."""
