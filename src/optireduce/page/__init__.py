"""Pages and plots that people look at."""
