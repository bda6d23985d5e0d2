"""The commands `rpcstream`, which calls a method, and `rpcstream-server`, which serves methods."""
