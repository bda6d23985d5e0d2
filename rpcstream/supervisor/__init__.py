"""Run a server in several processes: a supervisor that accepts connections, and workers that serve them."""
