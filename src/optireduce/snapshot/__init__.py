"""Return by snapshot: a rank that missed more than the others keep gets their training state over TCP.

``tree`` turns values into JSON and bytes, ``state`` a model and its optimizer. ``channel`` is an
authenticated connection, ``service`` answers requests of other ranks, ``donor`` holds what they asked for,
and ``returner`` is the procedure of the rank that returns. ``rejoin`` ties them to a session.
"""
