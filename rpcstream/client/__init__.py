"""The client: `Client` blocks, `AsyncClient` is awaited.

Both are a `BaseClient` with the same options, batches, retries and marshalling of calls. `AsyncClient` runs on a pool
of asyncio connections; `Client` calls on blocking sockets, and runs an `AsyncClient` in a thread for all that needs an
event loop.
"""
