"""One end of a conversation over a connection: it takes and makes calls, and carries streams and control messages."""
