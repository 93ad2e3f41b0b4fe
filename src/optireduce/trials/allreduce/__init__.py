"""How long all-reduces take, and what misses their deadlines, on the network of a lab: systems side by side.

Every rank belongs to a group of each system; blocks of operations of each take turns, so all meet the same
network in the same minutes.
"""
