"""The control plane of a cluster: who belongs to a job, and what is reduced with what."""
