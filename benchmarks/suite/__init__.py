"""The harness of the benchmarks. `../run.py` is the command; `topics` says what is measured, `report` shows it."""
