"""From bytes to messages and back. Pure: no asyncio, no socket, no clock."""
