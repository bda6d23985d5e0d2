"""The wire formats: framing, messages, HTTP and WebSocket. Without asyncio, sockets or clocks."""
