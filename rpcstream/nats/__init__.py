"""Calls over NATS: servers that join a service, and clients that call it, on one machine or on many.

Owns what both ends say to each other there: names of subjects, the connection, sessions without sockets, events and
claim tickets. Knows neither `Server` nor the clients, which import it when it is asked for. Needs the extra
`rpcstream[nats]`.
"""
