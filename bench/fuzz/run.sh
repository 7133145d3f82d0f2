#!/bin/sh
# Runs the fuzz targets, of this folder and of wire/fuzz, each for a number of seconds: run.sh [SECONDS [TARGET...]].
#
# Works on a stable toolchain: the coverage libFuzzer is led by is a pass of LLVM, which needs no nightly option
# (instrument.sh). New inputs go to target/corpus/TARGET, crashes to artifacts/TARGET of the target's folder; the inputs
# kept in corpus/TARGET are only read.
set -eu
cd "$(dirname "$0")"
seconds=${1:-20}
[ $# -gt 0 ] && shift
wanted=" $* "
build=${CARGO_TARGET_DIR:-$PWD/target}

RUSTC_WRAPPER="$PWD/instrument.sh" cargo build --release --workspace --bins

for folder in ../../wire/fuzz .; do
    cd "$folder"
    for target in $(sed -n 's/^path = "fuzz_targets\/\(.*\)\.rs"$/\1/p' Cargo.toml); do
        case $wanted in *" $target "* | "  ") ;; *) continue ;; esac
        echo "== $target, $seconds s"
        mkdir -p "$build/corpus/$target" "corpus/$target" "artifacts/$target"
        # Steps of a client make sense several at a time: long inputs from the start.
        case $target in hostile_client) lengths=0 ;; *) lengths=100 ;; esac
        "$build/release/$target" "$build/corpus/$target" "corpus/$target" \
            -max_total_time="$seconds" -max_len=4400 -len_control=$lengths -timeout=10 -rss_limit_mb=1024 \
            -artifact_prefix="artifacts/$target/" -print_final_stats=1
    done
    cd "$OLDPWD"
done
