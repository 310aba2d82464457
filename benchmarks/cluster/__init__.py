"""Hosts on one machine, for benchmarks and tests.

``netcluster.Cluster(n)``: network namespaces with links that can be cut and slowed; ``loopback.LoopbackCluster(n)``: addresses.
"""
