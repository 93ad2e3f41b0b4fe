"""Training under faults whose every step is compared: the same bits on all ranks, and nothing lost."""
