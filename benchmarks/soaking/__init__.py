"""The parts of `soak.py`: the server, the load, and what is to be seen of both while they rest."""
