"""The papers' claims as studies that anyone can rerun."""
