"""Decisions of an agent, without clock, sockets, processes or shared memory: events in, commands out."""

from horovod.agent.core.agent import AgentCore, AgentInfo

__all__ = ["AgentCore", "AgentInfo"]
