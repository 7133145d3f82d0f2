//! The `cxloe-bench` command. All of it is in the library, so that tests reach it.

fn main() -> std::process::ExitCode {
    cxloe_bench::cli::run()
}
