"""All-reduces for a long time under faults that take turns: nothing may hang, grow, or be wrong."""
