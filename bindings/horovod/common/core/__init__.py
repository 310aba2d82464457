"""The decisions of one rank: which operation runs on which plan.  Pure: standard library only, no clock, no sockets."""
