"""``python -m horovod.agent``: the same as ``hvd-agent``."""

from horovod.agent.cli import main

if __name__ == "__main__":
    main()
