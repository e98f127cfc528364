"""The API over HTTP: requests to verbs, answers to bytes and tables, and the door before both."""
