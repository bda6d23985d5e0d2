"""Authentication and permission: what a peer shows, who it is taken for, and what it may call."""
