//! The guest that moves: a program without an operating system, compiled where it is measured.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::MoveError;

const SOURCE: &str = include_str!("guest.c");
const LAYOUT: &str = include_str!("guest.ld");

/// Sizes of the guest's memory in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestSizes {
    /// Bytes that the guest writes once, before its passes.
    pub area: u64,
    /// Bytes of the working set, which each pass reads.
    pub working: u64,
    /// Each pass writes one page out of every `written_of` pages of the working set.
    pub written_of: u32,
}

/// Compiles the guest into `folder`; returns the path of its kernel, which QEMU loads with `-kernel`.
///
/// # Errors
/// There is no C compiler, or it cannot compile for a 32-bit x86 without libraries.
pub fn compile(folder: &Path, sizes: GuestSizes) -> Result<PathBuf, MoveError> {
    let (source, layout, kernel) =
        (folder.join("guest.c"), folder.join("guest.ld"), folder.join("guest.elf"));
    std::fs::write(&source, SOURCE)?;
    std::fs::write(&layout, LAYOUT)?;
    let mut compiler = Command::new("cc");
    compiler.args(["-m32", "-march=i686", "-O2", "-ffreestanding", "-fno-pie", "-fno-stack-protector"]);
    compiler.args(["-mno-sse", "-nostdlib", "-static", "-Wl,--build-id=none", "-Wl,--no-warn-rwx-segments"]);
    compiler.arg(format!("-DAREA={}u", sizes.area)).arg(format!("-DWORKING={}u", sizes.working));
    compiler.arg(format!("-DWRITTEN_OF={}", sizes.written_of));
    compiler.arg(format!("-Wl,-T,{}", layout.display())).arg("-o").arg(&kernel).arg(&source);
    let done = compiler.output().map_err(|error| format!("the guest needs the C compiler `cc`: {error}"))?;
    if !done.status.success() {
        return Err(format!("the guest cannot be compiled: {}", String::from_utf8_lossy(&done.stderr)).into());
    }
    Ok(kernel)
}
