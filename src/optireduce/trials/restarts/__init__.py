"""Ranks that are killed and started again, one by one, in the same group."""
