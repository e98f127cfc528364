"""Label and field selectors: strings of a query that choose objects."""
