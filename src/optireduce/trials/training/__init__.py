"""A small transformer trained with DDP, an ordinary loop, on the hosts of a lab or on loopback."""
