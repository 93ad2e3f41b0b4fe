"""All-reduces and training under faults that take turns, for long: nothing may hang, grow, or be wrong."""
