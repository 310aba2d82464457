"""The messages between ranks, agents and the coordinator, and their conversion to the dataclasses of the cores."""
