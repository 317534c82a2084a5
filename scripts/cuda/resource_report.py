#!/usr/bin/env python3
"""Compiles every kernel for every target and reports what the assembler says of it.

Usage: resource_report.py [--nvcc PATH] [--arch 80 89 90 120] [--jobs N]

Prints one line per kernel and target: registers, static shared memory (bytes), spilled bytes. Fails
if a kernel spills registers (those of a prompt, files named prefill_*, may), or if its static shared
memory exceeds what sm_120 has per block (99 KiB; dynamic shared memory is checked at launch).
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
KERNELS = ROOT / "kernels"
SHARED_MAX = 99 * 1024
# As in crates/ops/build.rs.
ARCHS = ["80", "89", "90", "120"]
HOPPER_PREFIX = "sm90_"
MAY_SPILL_PREFIX = "prefill_"


def compiler():
    if "NVCC" in os.environ:
        return os.environ["NVCC"]
    if "CUDA_HOME" in os.environ:
        return os.path.join(os.environ["CUDA_HOME"], "bin", "nvcc")
    return "nvcc"


def assemble(nvcc, source, arch):
    """Kernels of one file: (name, registers, shared bytes, spilled bytes)."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            nvcc, "-cubin", "-O3", "-std=c++17", "--expt-relaxed-constexpr", "-Xptxas", "-v",
            "-I", str(KERNELS), "-arch", f"sm_{arch}", "-o", f"{folder}/out.cubin", str(source),
        ]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{source.name} does not compile for sm_{arch}:\n{done.stderr}")
    return list(kernels(done.stderr))


def kernels(report):
    """Parses the assembler's report."""
    name, spilled = None, 0
    for line in report.splitlines():
        if entry := re.search(r"Compiling entry function '(\w+)'", line):
            name, spilled = entry[1], 0
        elif spill := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
            spilled = max(spilled, int(spill[1]), int(spill[2]))
        elif name and (used := re.search(r"Used (\d+) registers", line)):
            shared = re.search(r"(\d+) bytes smem", line)
            yield name, int(used[1]), int(shared[1]) if shared else 0, spilled
            name = None


def targets(source, archs):
    if source.stem.startswith(HOPPER_PREFIX):
        return ["90a"]
    return archs


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nvcc", default=compiler())
    parser.add_argument("--arch", nargs="+", default=ARCHS)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    work = [
        (source, arch)
        for source in sorted(KERNELS.glob("*.cu"))
        for arch in targets(source, options.arch)
    ]
    faults = []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        reports = pool.map(lambda item: assemble(options.nvcc, *item), work)
        for (source, arch), report in zip(work, reports):
            if not report:
                faults.append(f"{source.name} has no kernel for sm_{arch}")
            for name, registers, shared, spilled in report:
                print(f"sm_{arch:4} {source.stem:24} {name:48} {registers:4} registers "
                      f"{shared:6} B shared {spilled:5} B spilled")
                where = f"{name} ({source.name}, sm_{arch})"
                if spilled and not source.stem.startswith(MAY_SPILL_PREFIX):
                    faults.append(f"{where} spills {spilled} bytes of registers")
                if shared > SHARED_MAX:
                    faults.append(f"{where} has {shared} bytes of shared memory, {SHARED_MAX} at most")
    for fault in faults:
        print("fault:", fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
