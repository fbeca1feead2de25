"""`python -m binsgdm measure ...` is `simnet measure ...`, so that ranks can be launched where only binsgdm is."""

import sys

NAME = "python -m binsgdm"
USAGE = f"usage: {NAME} measure ...\n\nTimes the parts of training; `{NAME} measure --help` lists them."
MISTAKE = 2


def main() -> None:
    """Run the command line and exit: 0, 2 for a mistake, reported in one line, 130 after Ctrl-C."""
    match sys.argv[1:]:
        case ["measure", *arguments]:
            sys.argv[1:] = arguments
        case ["--help"]:
            print(USAGE)
            sys.exit(0)
        case [*others]:
            given = f"{others[0]!r}: unknown" if others else "no command"
            sys.exit(_refuse(f"{given}: give measure, as in {NAME} measure --help"))
    from binsgdm.bench import __main__ as bench

    bench.NAME = f"{NAME} measure"  # what its messages call the command
    bench.main()


def _refuse(line: str) -> int:
    sys.stderr.write(f"binsgdm: {line}\n")
    return MISTAKE


if __name__ == "__main__":
    main()
