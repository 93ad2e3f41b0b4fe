"""What ranks do in a lab: all-reduces side by side, or training; one process on each host."""
