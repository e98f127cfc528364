"""Serving on sockets that anyone may reach: so many connections, each with so much time."""
