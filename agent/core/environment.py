"""The variables that a rank finds: Horovod's names, so that scripts and libraries that read them keep working.

What describes a host or a login comes from the agent, the rest from whoever submitted the job.
"""

from __future__ import annotations

from collections.abc import Mapping

from horovod.agent.core.values import RankPlace

# From the agent's own environment, whatever the launcher's has: they speak of a host or of a login on it.
HOST_VARIABLES = (
    *("DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "HOME", "HOST", "HOSTNAME", "LOGNAME", "MAIL", "PWD", "SHELL", "SHLVL"),
    *("SSH_AUTH_SOCK", "SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY", "TEMP", "TMP", "TMPDIR", "TTY", "USER"),
    *("WAYLAND_DISPLAY", "XAUTHORITY", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR"),
    *("XDG_SESSION_ID", "XDG_STATE_HOME", "_"),
)


def on_host(job: Mapping[str, str], host: Mapping[str, str]) -> dict[str, str]:
    """A remote job's environment as ranks of this host get it; commands are looked for in the host's PATH too."""
    own = {name: host[name] for name in HOST_VARIABLES if name in host}
    sent = {name: value for name, value in job.items() if name not in HOST_VARIABLES}
    paths = [*sent.get("PATH", "").split(":"), *host.get("PATH", "").split(":")]
    path = ":".join(dict.fromkeys(path for path in paths if path))
    return {**own, **sent, **({"PATH": path} if path else {})}


def rank_environment(job: Mapping[str, str], place: RankPlace, size: int, address: str, nonce: str) -> dict[str, str]:
    """The job's environment with what belongs to one slot; what the user has set of the last block stays."""
    own = {
        "HOROVOD_HOSTNAME": place.host,
        "HOROVOD_RANK": str(place.rank),
        "HOROVOD_SIZE": str(size),
        "HOROVOD_LOCAL_RANK": str(place.local_rank),
        "HOROVOD_LOCAL_SIZE": str(place.local_size),
        "HOROVOD_CROSS_RANK": str(place.cross_rank),
        "HOROVOD_CROSS_SIZE": str(place.cross_size),
        "HOROVOD_AGENT": address,
        "HVD_SLOT_NONCE": nonce,
    }
    defaults = {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo", "PYTHONUNBUFFERED": "1"}
    return {**defaults, **job, **own}
