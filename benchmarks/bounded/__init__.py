"""How long all-reduces take, and what they lose, on a noisy network: Gloo and optireduce side by side.

``python -m benchmarks.bounded --environment bursts`` as root: hosts are network namespaces (optireduce.lab),
one rank each. Every rank belongs to a Gloo group and to an optireduce group; blocks of operations of each
take turns, so both meet the same network in the same minutes.
"""
