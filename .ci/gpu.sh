#!/bin/sh
# Test and measure the GPUs of this machine into the folder $1, and write their calibration into $1-card; further arguments are
# those of `simnet measure gpu`. A Python whose torch has CUDA is looked for in $PYTHON, $VENV, $VENV-gpu and on the PATH; where
# there is none, torch is installed into $VENV-gpu. Nothing else is installed, but for packages that calibrating needs.
set -eu

folder=$1
shift
# A folder among the further arguments is the one that is measured into: its calibration belongs beside it.
named=
for argument in "$@"; do
    if [ "$named" = next ]; then
        folder=$argument
        named=
        continue
    fi
    case $argument in
        -o | --output) named=next ;;
        --output=*) folder=${argument#*=} ;;
        -o?*) folder=${argument#-o} ;;
    esac
done
folder=${folder%/}
has_cuda='import sys, torch; sys.exit(sys.version_info < (3, 11) or not (torch.version.cuda or torch.version.hip))'
measures='import click, numpy, torch'
tests='import hypothesis, pytest'
calibrates='import click, msgspec, numpy, rich, scipy, simpy, tomli_w'

# Without a package index, pip would try each package five times.
try_pip='-m pip install --quiet --disable-pip-version-check --retries 1 --timeout 15'

say() {
    echo "make gpu: $1" >&2
}

# The first of the Pythons $2... that can run the code $1.
first_that() {
    code=$1
    shift
    for python in "$@"; do
        if "$python" -c "$code" >/dev/null 2>&1; then
            echo "$python"
            return
        fi
    done
}

has_card() {
    nvidia-smi -L >/dev/null 2>&1 && return
    for device in ${GPU_DEVICES:-/dev/nvidia0 /dev/nvidiactl /dev/kfd /dev/dxg}; do
        [ -e "$device" ] && return
    done
    return 1
}

# The package index of torch whose CUDA the driver can run: NVIDIA's drivers from 580 on run CUDA 13, older ones 12.
index_of_torch() {
    driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1 | cut -d . -f 1)
    case $driver in
        [1-4]?? | 5[0-7]?) echo "--index-url https://download.pytorch.org/whl/cu126" ;;
    esac
}

# A venv of its own, so that $VENV keeps the torch that it has.
install_torch() {
    PYTHON="${PYTHON:-}" sh .ci/make_venv.sh "$VENV-gpu" || return
    # shellcheck disable=SC2046 # two words, or none
    "$VENV-gpu/bin/python" -m pip install --quiet --disable-pip-version-check $(index_of_torch) "${TORCH_GPU:-torch>=2.10}" &&
        "$VENV-gpu/bin/python" -m pip install --quiet --disable-pip-version-check click 'numpy>=1.26' 'numba>=0.60' pytest hypothesis
}

# What the shipped models are made of. Each torchvision is for one torch (0.26 for 2.11) and would replace any other.
install_models() {
    minor=$("$VENV-gpu/bin/python" -c 'import torch; print(torch.__version__.split(".")[1])') &&
        "$VENV-gpu/bin/python" -m pip install --quiet --disable-pip-version-check pillow 'transformers>=4.48' &&
        # shellcheck disable=SC2046 # two words, or none
        "$VENV-gpu/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps $(index_of_torch) \
            "torchvision==0.$((minor + 15)).*"
}

# With the packages of $1 and what else measuring needs.
install_click() {
    "$1" -m venv --system-site-packages "$VENV-gpu" &&
        "$VENV-gpu/bin/python" $try_pip click 'numpy>=1.26' || return
    "$VENV-gpu/bin/python" $try_pip pytest hypothesis || :
}

# Whether pip finds a package index, or what it is told to take for one; so say those without pip, which cannot ask. One
# short try: where nothing answers, each address of an index would be waited for.
index_answers() {
    asking=$(first_that 'import pip' "$python" $all)
    [ -n "$asking" ] || return 0
    place=$(mktemp -d)
    answer=0
    timeout 10 "$asking" -m pip download --quiet --disable-pip-version-check --retries 0 --timeout 5 --no-deps \
        --dest "$place" simpy >/dev/null 2>&1 || answer=1
    rm -rf "$place"
    return $answer
}

# Correctness: the tests that a card shows in full. How they ended is the file of the part `checks`.
test_card() {
    if ! "$python" -c "$tests" >/dev/null 2>&1; then
        say "pytest or hypothesis is missing, so nothing is tested on the card: $python -m pip install pytest hypothesis"
        return
    fi
    # shellcheck disable=SC2086 # some words, or none
    env $on_cpu "$python" -m pytest -q -W default -p no:cacheprovider -m gpu tests/gpu tests/unit/binsgdm/kernels \
        --checks "$folder/checks.json" >&2 && return
    say "tests have failed on this card: do not trust its times ($folder/checks.json)"
    code=1
}

calibration_needs() {
    PYTHON="${PYTHON:-}" sh .ci/make_venv.sh "$VENV" >/dev/null &&
        "$VENV/bin/python" $try_pip --editable .
}

all="${PYTHON:-} $VENV/bin/python $VENV-gpu/bin/python python3 python3.14 python3.13 python3.12 python3.11 python"
card_options=
on_cpu=
case " $* " in
    *" --device cpu "* | *" --device=cpu "*)
        has_cuda='import sys, torch; sys.exit(sys.version_info < (3, 11))'
        card_options='--accept-cpu '
        on_cpu='CUDA_VISIBLE_DEVICES= TRITON_INTERPRET=1'
        ;;
    *)
        if ! has_card; then
            say "no GPU: no driver has made a device here: run it on a machine with a GPU, or try it with GPU_ARGS='--device cpu --quick'"
            exit 2
        fi
        ;;
esac

python=$(first_that "$has_cuda" $all)
if [ -n "${PYTHON:-}" ] && [ "$python" != "$PYTHON" ]; then
    say "$PYTHON is no Python from 3.11 on whose torch has CUDA: taking another"
fi
if [ -z "$python" ]; then
    say "no Python here has torch with CUDA: installing it into $VENV-gpu (several GB, once)"
    if ! install_torch >&2; then
        say "torch cannot be installed: install a torch with CUDA, or name a Python that has one: make gpu PYTHON=/path/to/python"
        exit 2
    fi
    install_models >&2 || say "torchvision or transformers cannot be installed: what is missing is not measured"
    python="$VENV-gpu/bin/python"
elif ! "$python" -c "$measures" >/dev/null 2>&1; then
    if ! install_click "$python" >&2; then
        say "$python has torch, but click or numpy is missing and cannot be installed: put them on PYTHONPATH"
        exit 2
    fi
    python="$VENV-gpu/bin/python"
fi

say "$("$python" -c 'import platform, torch; print(f"Python {platform.python_version()}, torch {torch.__version__}")') ($python)"
mkdir -p "$folder"
elsewhere="copy $folder to where simnet is installed, and there: simnet measure gpu --card $folder $card_options"
elsewhere="$elsewhere--base a100_tcp_estimate -o $folder-card"
writer=$(first_that "$calibrates" "$python" $all)
is_offline=
if [ -z "$writer" ] && ! index_answers; then
    is_offline=yes
    say "no calibration will be made here: packages of simnet are missing, and no package index answers: after this, $elsewhere"
fi
code=0
# First: times of kernels that are wrong mislead. Once a folder, as every part.
case " $* " in
    *" --only"* | *" --help "*) ;;
    *" --force "*) test_card ;;
    *) [ -e "$folder/checks.json" ] || test_card ;;
esac
measured=0
"$python" -m binsgdm measure gpu -o "$folder" "$@" || measured=$?
# 1: a part has failed, and the others are calibrated to.
[ "$measured" -le 1 ] || exit "$measured"
[ "$measured" -eq 0 ] || code=1

if [ -z "$writer" ] && [ -z "$is_offline" ] && calibration_needs >&2; then
    writer="$VENV/bin/python"
fi
if [ -z "$writer" ]; then
    say "no calibration was made here: $elsewhere"
    exit "$code"
fi
"$writer" -m simnet measure gpu --card "$folder" --base a100_tcp_estimate $card_options -o "$folder-card" || exit
exit "$code"
