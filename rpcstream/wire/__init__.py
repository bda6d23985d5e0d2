"""The wire formats: framing, messages, HTTP and WebSocket. Pure: no asyncio, no socket, no clock."""
