"""Parts of the site that are made when it is built."""
