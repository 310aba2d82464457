"""Seeded random programs, run by real ranks and compared with NumPy."""
