"""A group that a restarted process of one of its ranks joins while the others train on.

``group`` is what users make, and ``meeting`` its part in a session. ``board`` is the store in which a job
keeps its ``record``: where the ranks of the running group listen, and the group's secret. ``arrival`` finds
out whether a process that starts forms a group with the others or joins one; ``entrance`` gives the second
kind its engine. ``member`` answers ranks that join, and ``keeper`` keeps the record in the store.
"""
