"""One end of a conversation: incoming messages to the dispatcher or to the calls that wait for them."""
