"""The methods of a server as tools for agents, by the Model Context Protocol (MCP).

Two generations of it: 2026-07-28, in which every request says all that is needed to answer it, and 2025-11-25 with
2025-06-18, which begin with `initialize`. Over HTTP (POST) and as lines on standard input and output. A tool is a
method; the server's own dispatcher calls it, so that permissions, time-outs, middleware, metrics and traces hold.

Owns what is said in MCP. Imported only by servers that offer it (`Server(mcp=True)`, `rpcstream-server --mcp`).
"""
