"""Connections: sockets, protocol detection, and the protocols that carry messages."""
