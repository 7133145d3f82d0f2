#!/bin/sh
# Runs the fuzz targets, of this folder and of wire/fuzz, each for a number of seconds: run.sh [--seed N] [SECONDS [TARGET...]].
#
# With --seed, each target tries a fixed number of inputs instead, starting from the kept ones alone: the same number
# gives the same inputs, whatever was found before and however fast the machine is.
#
# Works on a stable toolchain: the coverage libFuzzer is led by is a pass of LLVM, which needs no nightly option
# (instrument.sh). New inputs go to target/corpus/TARGET, crashes to artifacts/TARGET of the target's folder; the inputs
# kept in corpus/TARGET are only read.
set -eu
cd "$(dirname "$0")"
seed=
if [ "${1:-}" = --seed ]; then
    seed=$2
    shift 2
fi
seconds=${1:-20}
[ $# -gt 0 ] && shift
wanted=" $* "
build=${CARGO_TARGET_DIR:-$PWD/target}

RUSTC_WRAPPER="$PWD/instrument.sh" cargo build --release --workspace --bins

for folder in ../../wire/fuzz .; do
    cd "$folder"
    for target in $(sed -n 's/^path = "fuzz_targets\/\(.*\)\.rs"$/\1/p' Cargo.toml); do
        case $wanted in *" $target "* | "  ") ;; *) continue ;; esac
        found=$build/corpus/$target
        # Some three seconds each on two slow cores.
        case $target in hostile_client) runs=700 ;; responder | keyed) runs=10000 ;; *) runs=60000 ;; esac
        if [ -n "$seed" ]; then
            found=$build/corpus-of-seed
            rm -rf "$found"
            echo "== $target, $runs inputs, seed $seed"
            limit="-seed=$seed -runs=$runs"
        else
            echo "== $target, $seconds s"
            limit=-max_total_time=$seconds
        fi
        mkdir -p "$found" "corpus/$target" "artifacts/$target"
        # Steps of a client make sense several at a time: long inputs from the start.
        case $target in hostile_client) lengths=0 ;; *) lengths=100 ;; esac
        # shellcheck disable=SC2086 # two options
        "$build/release/$target" "$found" "corpus/$target" \
            $limit -max_len=4400 -len_control=$lengths -timeout=10 -rss_limit_mb=1024 \
            -artifact_prefix="artifacts/$target/" -print_final_stats=1
    done
    cd "$OLDPWD"
done
