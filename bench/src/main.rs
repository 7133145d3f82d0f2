//! The `cxloe-bench` command. The code is in the library, so that tests reach it.

fn main() -> std::process::ExitCode {
    cxloe_bench::cli::run()
}
