"""The methods of a server as tools for agents, by the Model Context Protocol (MCP).

There are two generations of MCP: in 2026-07-28 every request is complete by itself; 2025-11-25 and 2025-06-18 begin
with `initialize`. Messages come over HTTP (POST), or as lines on standard input. A tool is a method: the dispatcher of
the server calls it, so that permissions, time-outs, middleware, metrics and traces hold.

Only servers that offer MCP import this package (`Server(mcp=True)`, `rpcstream-server --mcp`).
"""
