"""What a server counts about itself."""
