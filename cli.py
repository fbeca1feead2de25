"""The command line of a checkout: `python cli.py simulate ...` is `simnet simulate ...`."""

from simnet.cli.main import main

if __name__ == "__main__":
    main()
