"""``python -m horovod.coordinator``: the same as ``hvd-coordinator``."""

from horovod.coordinator.cli import main

if __name__ == "__main__":
    main()
