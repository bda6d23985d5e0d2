"""Reads OpenRPC documents, for stubs, clients, the command line and agents; and rewrites them for older tools.

A document may come from any server: malformed parts are left out, or become "any value".
"""
