"""The agent of a host: starts and watches its ranks, owns the shared memory where they meet, speaks for them.

``core`` decides; the modules beside it act: sockets, processes, output, boards, threads.
"""
