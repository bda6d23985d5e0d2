"""Reads OpenRPC documents: methods, their parameters and types, for stubs, clients, the command line and agents.

A document may come from any server: malformed parts are left out, or become "any value".
"""
