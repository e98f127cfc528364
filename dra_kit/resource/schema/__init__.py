"""Structure of the API's objects, as one table with a reader and a writer."""
