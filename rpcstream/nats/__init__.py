"""Calls over NATS: servers that join a service, and clients that call it, on one machine or on many.

Logins by credentials files and nkeys need the extra `rpcstream[nats]`.
"""
