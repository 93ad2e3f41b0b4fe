"""Training in which a rank is stopped for long, or killed and started again, and comes back."""
