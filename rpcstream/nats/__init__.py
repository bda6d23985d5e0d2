"""Calls over NATS: servers that join a service, and clients that call it, on one machine or on many.

Needs the extra `rpcstream[nats]`.
"""
