#!/usr/bin/env bash
# Fetches a CUDA compiler from Python wheels (about 110 MB) where no toolkit is installed, and
# prints the folder for CUDA_HOME:
#
#     export CUDA_HOME=$(scripts/cuda/fetch-compiler.sh)
#
# Needs python3 with pip, unzip and a host C++ compiler. Nothing outside target/cuda changes.
# 13.0 matches driver 580: machine code of a newer compiler may not run there.
set -euo pipefail
cd "$(dirname "$0")/../.."

WHEELS=(
    nvidia-cuda-nvcc==13.0.88
    nvidia-nvvm==13.0.88
    nvidia-cuda-crt==13.0.88
    nvidia-cuda-runtime==13.0.96
    nvidia-cuda-cccl==13.0.85
)
folder=$PWD/target/cuda
home=$folder/nvidia/cu13

if [ ! -f "$folder/complete" ]; then
    rm -rf "$folder"
    mkdir -p "$folder/wheels"
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$folder/wheels" "${WHEELS[@]}" >&2
    for wheel in "$folder"/wheels/*.whl; do
        unzip -qo "$wheel" -d "$folder"
    done
    rm -r "$folder/wheels"
    # A wheel keeps no execute permissions.
    chmod +x "$home"/bin/* "$home"/nvvm/bin/*
    "$home/bin/nvcc" --version >&2
    touch "$folder/complete"
fi
echo "$home"
