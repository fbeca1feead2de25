#!/bin/sh
# Make the virtual environment $1 with $PYTHON or else the newest Python >= 3.11 on the PATH; keep one that works.
set -eu

venv=$1
probe='import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))'

if "$venv/bin/python" -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    exit 0
fi
for python in ${PYTHON:-python3.14 python3.13 python3.12 python3.11 python3 python}; do
    if "$python" -c "$probe" 2>/dev/null; then
        echo "Making $venv with $("$python" -V) ($python)"
        exec "$python" -m venv --clear "$venv"
    fi
done
echo "make: no Python >= 3.11 with venv and ensurepip found; install one, or name it: make PYTHON=/path/to/python3" >&2
exit 2
