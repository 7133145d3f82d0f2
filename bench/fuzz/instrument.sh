#!/bin/sh
# Called by cargo in place of rustc: adds the coverage that leads libFuzzer to the crates that read what comes, and to no
# others, whose branches would lead it elsewhere and take twice as long to build.
set -eu
case " $* " in
*" --crate-name cxloe_wire"* | *" --crate-name cxloe_client "* | *" --crate-name cxloe_fm "* | *" --crate-name cxloe_nbd "* | \
    *" --crate-name cxloe_rings "* | *" --crate-name cxloe_fuzz "* | *" fuzz_targets/"*)
    exec "$@" --cfg fuzzing -Ccodegen-units=1 -Cpasses=sancov-module \
        -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
        -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares
    ;;
esac
exec "$@"
