"""The parts of `soak.py`: the server, the load, and the state of both at rest."""
