"""`python -m simnet ...` is `simnet ...`."""

from simnet.commands.main import main

if __name__ == "__main__":
    main()
