"""Authentication and permission: which identity a peer has, and which methods that identity may call."""
