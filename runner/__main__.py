"""``python -m horovod.runner`` is ``horovodrun``."""

from horovod.runner.launch import main

if __name__ == "__main__":
    main()
