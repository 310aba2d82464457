"""Measurements against the peers that are installed, all in one invocation.

``python -m benchmarks.allreduce`` times single tensors, ``python -m benchmarks.gradients`` whole sets of gradients.
Each peer is a group of ranks that runs ``benchmarks.worker``; the groups take turns, case by case and round by round,
so that a machine that slows down slows them all.
"""
