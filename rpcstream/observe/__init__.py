"""Counters of a server, and a log with a limited number of lines."""
