"""`python -m seaweedq` is the command `seaweedq`."""

from seaweedq.cli.main import main

if __name__ == "__main__":
    main()
