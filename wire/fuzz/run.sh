#!/bin/sh
# Runs the fuzz targets, each for a number of seconds: run.sh [SECONDS [TARGET...]]. Those of this folder, or with
# FUZZ=FOLDER those of another one that is laid out alike.
#
# Works on a stable toolchain: the coverage libFuzzer is led by is a pass of LLVM, which needs no nightly option.
# New inputs go to target/corpus/TARGET, crashes to artifacts/TARGET; the inputs kept in corpus/TARGET are only read.
set -eu
cd "${FUZZ:-$(dirname "$0")}"
seconds=${1:-20}
[ $# -gt 0 ] && shift
targets=${*:-$(sed -n 's/^path = "fuzz_targets\/\(.*\)\.rs"$/\1/p' Cargo.toml)}
host=$(rustc -vV | sed -n 's/^host: //p')
build=${CARGO_TARGET_DIR:-target}

# An explicit target keeps these flags from build scripts and procedural macros.
RUSTFLAGS="--cfg fuzzing -Ccodegen-units=1 -Cpasses=sancov-module \
-Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
-Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares" \
    cargo build --release --target "$host" --bins

for target in $targets; do
    echo "== $target, $seconds s"
    mkdir -p "$build/corpus/$target" "corpus/$target" "artifacts/$target"
    "$build/$host/release/$target" "$build/corpus/$target" "corpus/$target" \
        -max_total_time="$seconds" -max_len=4400 -timeout=10 -rss_limit_mb=1024 \
        -artifact_prefix="artifacts/$target/" -print_final_stats=1
done
