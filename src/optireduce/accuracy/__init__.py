"""What lost data does to training: the protocol in virtual time under real models, against an exact run.

``python -m optireduce.accuracy``: eight replicas in one process, each with its own parameters and optimizer.
Every step their gradients are averaged by the protocol itself (optireduce.experiments.simulation), and a
chosen share of the packets does not come before the deadline. The final loss is compared with the exact run
of the same seed.

On a machine that others use too, set OMP_WAIT_POLICY=passive: threads that spin while they wait for each
other make a step of ``bytes`` many times slower.
"""
