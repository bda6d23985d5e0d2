"""A Python function as a remote method: found by name, checked against its hints, called."""
