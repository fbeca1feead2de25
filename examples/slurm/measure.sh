#!/bin/bash
# Measure a Slurm allocation for simnet: kernels and model of one GPU, the network, and a training to judge predictions by.
#   sbatch examples/slurm/measure.sh my_pkg.bench:build 25
# MODEL (module:function of the batch size) and NIC_GBIT_PER_S (all NICs of a node together) are the arguments.
#SBATCH --job-name=simnet-measure
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --time=01:00:00
set -euo pipefail

MODEL=${1:?"MODEL: give module:function, such as my_pkg.bench:build"}
NIC_GBIT_PER_S=${2:?"NIC_GBIT_PER_S: give the nominal rate of all NICs of a node together"}
NODES=${SLURM_JOB_NUM_NODES:?"run by sbatch or inside salloc"}
GPUS=${GPUS_PER_NODE:-8}
OUT=${OUT:-measured}
# Not by head, which may end before scontrol has written all: pipefail would end the job.
HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
mkdir -p "$OUT"

# One torchrun a node on the first N nodes.
on() {
    local nodes=$1
    shift
    srun --nodes "$nodes" --ntasks "$nodes" torchrun --nnodes "$nodes" --nproc-per-node "$GPUS" \
        --rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d --rdzv-endpoint "$HEAD:29500" -m binsgdm measure "$@"
}

srun --nodes 1 --ntasks 1 simnet measure kernels --device cuda -o "$OUT/kernels.json"
srun --nodes 1 --ntasks 1 simnet measure model --device cuda --model "$MODEL" --batch 32 -o "$OUT/model.json"
on 2 collectives --nic-gbit-per-s "$NIC_GBIT_PER_S" -o "$OUT/links.json"
on 2 interference --model "$MODEL" --batch 32 -o "$OUT/overlap.json"
on "$NODES" training --model "$MODEL" --batch 32 --nic-gbit-per-s "$NIC_GBIT_PER_S" \
    --strategy all_reduce --strategy binsgdm --strategy binsgdm:overlap -o "$OUT/training.json"
echo "next: simnet calibrate $OUT/links.json $OUT/kernels.json $OUT/overlap.json -o mine.toml"
