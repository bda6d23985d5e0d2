"""The peer as callers see it: an address, a call, an answer.

`sync` and `aio` are its two faces; they only move bytes. What both do alike is pure and written once: the address, how
a call becomes bytes and a reply a value, the attribute sugar, batches, the choice of a connection.
"""
