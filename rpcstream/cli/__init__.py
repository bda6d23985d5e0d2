"""The two commands: `rpcstream`, which calls, and `rpcstream-server`, which serves."""
