//! The two transports of requests and answers.
//!
//! [`device`] reads and writes `/dev/fuse`; it always runs, because FORGET and INTERRUPT come only
//! that way. [`uring`] takes requests from the per-CPU queues of FUSE over `io_uring` (Linux 6.14).
//! If its entries cannot be registered, the kernel falls back to the device by itself.

mod callers;
pub(crate) mod device;
pub(crate) mod uring;

use std::fs;
use std::io;

use crate::request::Operation;

/// The module parameter that allows FUSE over `io_uring`.
const ENABLE_URING: &str = "/sys/module/fuse/parameters/enable_uring";

/// Most bytes of a transfer that is done on the CPU of its caller.
const PROMPT_BYTES_MAX: u32 = 16 << 10;

/// Returns whether an operation needs little CPU time, so its caller loses nothing by sharing its
/// CPU.
fn is_prompt(operation: &Operation) -> bool {
    match operation {
        Operation::Read(read) => read.size <= PROMPT_BYTES_MAX,
        Operation::Write(write) => write.data.len() <= PROMPT_BYTES_MAX as usize,
        _ => true,
    }
}

/// Returns whether the error of a receive is transient: no request yet, an interrupted call, or a
/// request that its caller has withdrawn meanwhile.
pub(crate) fn fetch_error_is_transient(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR | libc::ENOENT))
}

/// Returns whether the kernel allows FUSE over `io_uring` now; the error is the reason.
pub fn availability() -> Result<(), String> {
    match fs::read_to_string(ENABLE_URING) {
        Ok(text) if matches!(text.trim(), "Y" | "1") => Ok(()),
        Ok(_) => Err(format!(
            "FUSE over io_uring is off (as root: `echo 1 > {ENABLE_URING}`, or boot with \
             fuse.enable_uring=1)"
        )),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err("this kernel has no FUSE over io_uring (Linux 6.14 with CONFIG_FUSE_IO_URING)"
                .into())
        }
        Err(error) => Err(format!("cannot read {ENABLE_URING}: {error}")),
    }
}

/// Enables FUSE over `io_uring` for this machine, which needs root; the error is the reason why it
/// cannot. Existing mounts do not change.
pub fn enable_uring() -> Result<(), String> {
    if availability().is_ok() {
        return Ok(());
    }
    fs::write(ENABLE_URING, "1").map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            "this kernel has no FUSE over io_uring (Linux 6.14 with CONFIG_FUSE_IO_URING)".into()
        }
        io::ErrorKind::PermissionDenied => format!("only root may write {ENABLE_URING}"),
        _ => format!("cannot write {ENABLE_URING}: {error}"),
    })?;
    availability()
}

/// Returns the number of CPUs that the kernel may ever bring up: each has a queue.
pub(crate) fn possible_cpus() -> io::Result<u16> {
    let text = fs::read_to_string("/sys/devices/system/cpu/possible")?;
    parse_possible_cpus(&text).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, format!("list of possible CPUs: {text:?}"))
    })
}

/// Returns the count of a list such as `0-3,8-11`: the kernel numbers its queues without gaps.
fn parse_possible_cpus(text: &str) -> Option<u16> {
    let mut count: u16 = 0;
    for range in text.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        count = count.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: every form of the kernel's CPU list is counted, and invalid ones are refused.
    #[test]
    fn cpu_lists_are_counted() {
        assert_eq!(parse_possible_cpus("0\n"), Some(1));
        assert_eq!(parse_possible_cpus("0-1\n"), Some(2));
        assert_eq!(parse_possible_cpus("0-3,8-11"), Some(8));
        for nonsense in ["", "x", "3-1", "1-", "0-65535"] {
            assert_eq!(parse_possible_cpus(nonsense), None, "{nonsense}");
        }
    }
}
