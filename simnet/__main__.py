"""`python -m simnet ...` is `simnet ...`."""

from simnet.cli.main import main

if __name__ == "__main__":
    main()
