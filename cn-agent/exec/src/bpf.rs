//! Instructions of system call filters (classic BPF), and the offsets of the data that a filter examines.

use libc::{BPF_ABS, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, sock_filter};

/// Offsets in `struct seccomp_data`, in bytes.
pub(crate) const NUMBER_AT: u32 = 0;
pub(crate) const ARCHITECTURE_AT: u32 = 4;
pub(crate) const ARGUMENTS_AT: u32 = 16;

/// An instruction without a jump.
pub(crate) fn statement(code: u32, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

/// Compares the accumulator with `k`; skips `jt` instructions if the comparison `how` holds, else `jf`.
pub(crate) fn jump(how: u32, k: u32, jt: usize, jf: usize) -> sock_filter {
    sock_filter { code: (BPF_JMP | how | BPF_K) as u16, jt: jt as u8, jf: jf as u8, k }
}

/// Loads the word at this offset of the data.
pub(crate) fn load(at: u32) -> sock_filter {
    statement(BPF_LD | BPF_W | BPF_ABS, at)
}

/// Ends the filter with a verdict, one of the kernel's `SECCOMP_RET_*` values.
pub(crate) fn done(verdict: u32) -> sock_filter {
    statement(BPF_RET | BPF_K, verdict)
}

#[cfg(test)]
pub(crate) mod tests {
    use libc::{BPF_ALU, BPF_AND, BPF_JEQ, BPF_JGE, BPF_JGT, c_long};

    use super::*;

    /// Simulates the kernel: the filter's verdict on a system call.
    pub(crate) fn run(program: &[sock_filter], architecture: u32, call: c_long, arguments: &[u64; 6]) -> u32 {
        let mut data = Vec::new();
        data.extend_from_slice(&(call as u32).to_le_bytes());
        data.extend_from_slice(&architecture.to_le_bytes());
        data.extend_from_slice(&[0; 8]);
        arguments.iter().for_each(|argument| data.extend_from_slice(&argument.to_le_bytes()));
        let (mut at, mut accumulator) = (0, 0_u32);
        for _ in 0..program.len() {
            let sock_filter { code, jt, jf, k } = program[at];
            at += 1;
            match u32::from(code) {
                code if code == BPF_LD | BPF_W | BPF_ABS => {
                    let from = k as usize;
                    accumulator = u32::from_le_bytes(data[from..from + 4].try_into().unwrap());
                }
                code if code == BPF_ALU | BPF_AND | BPF_K => accumulator &= k,
                code if code & 7 == BPF_JMP => {
                    let met = match code {
                        code if code == BPF_JMP | BPF_JEQ | BPF_K => accumulator == k,
                        code if code == BPF_JMP | BPF_JGE | BPF_K => accumulator >= k,
                        code if code == BPF_JMP | BPF_JGT | BPF_K => accumulator > k,
                        code => panic!("jump {code:#x}"),
                    };
                    at += usize::from(if met { jt } else { jf });
                }
                code if code == BPF_RET | BPF_K => return k,
                code => panic!("instruction {code:#x}"),
            }
        }
        panic!("it does not end")
    }
}
