"""Connections in memory: `join(a, b)` makes two protocols the ends of one. `server.in_memory()` gives the server's."""

from rpcstream.transports.memory import join

__all__ = ["join"]
