"""Bytes and connections. Hands whole messages to a peer; knows no method and no rich type."""
