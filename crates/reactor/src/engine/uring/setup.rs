//! The features of this kernel's `io_uring`, found out by trying.
//!
//! Later kernels made rings cheaper ([`Level`]). The features of the ring and the operations that
//! the engine needs are checked one by one. Linux 5.11 is the first that has them all.

use io_uring::squeue::Entry128;
use io_uring::{IoUring, Probe, cqueue, opcode, squeue};
use std::io;
use std::sync::OnceLock;

/// Entries of the ring that is made as a trial.
const TRIED_ENTRIES: u32 = 256;

/// The flags with which a ring is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// All: Linux 6.1.
    Deferred,
    /// Without `SINGLE_ISSUER` and `DEFER_TASKRUN`: Linux 5.19.
    Cooperative,
    /// None: completions may interrupt the thread.
    Plain,
}

impl Level {
    const ALL: [Self; 3] = [Self::Deferred, Self::Cooperative, Self::Plain];

    fn apply<S: squeue::EntryMarker>(self, builder: &mut io_uring::Builder<S, cqueue::Entry>) {
        match self {
            Self::Deferred => builder
                .setup_single_issuer()
                .setup_defer_taskrun()
                .setup_coop_taskrun()
                .setup_taskrun_flag()
                .setup_submit_all(),
            Self::Cooperative => {
                builder.setup_coop_taskrun().setup_taskrun_flag().setup_submit_all()
            }
            Self::Plain => builder,
        };
    }

    /// Returns the explanation of the level.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::Deferred => "this kernel has all that it uses",
            Self::Cooperative => "without DEFER_TASKRUN, which this kernel lacks or refuses",
            Self::Plain => {
                "without DEFER_TASKRUN and COOP_TASKRUN, which this kernel lacks or refuses"
            }
        }
    }
}

struct Found {
    level: Level,
    has_wide_entries: bool,
}

/// Tries once for each process.
fn found() -> Result<&'static Found, &'static (io::ErrorKind, String)> {
    static FOUND: OnceLock<Result<Found, (io::ErrorKind, String)>> = OnceLock::new();
    FOUND.get_or_init(|| try_all().map_err(|error| (error.kind(), error.to_string()))).as_ref()
}

/// Returns the level at which rings are made, or the reason why none can be made.
pub(crate) fn level() -> io::Result<Level> {
    match found() {
        Ok(found) => Ok(found.level),
        Err((kind, text)) => Err(io::Error::new(*kind, text.clone())),
    }
}

/// Returns whether the kernel has entries of 128 bytes (Linux 5.19).
pub(crate) fn has_wide_entries() -> bool {
    found().is_ok_and(|found| found.has_wide_entries)
}

fn try_all() -> io::Result<Found> {
    let mut last = None;
    for level in Level::ALL {
        match build_at(level, IoUring::builder(), TRIED_ENTRIES) {
            Ok(ring) => {
                check(&ring)?;
                drop(ring);
                let wide = build_at(level, IoUring::<Entry128>::builder(), TRIED_ENTRIES);
                return Ok(Found { level, has_wide_entries: wide.is_ok() });
            }
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => last = Some(error),
            Err(error) => return Err(advise(error)),
        }
    }
    Err(advise(last.unwrap_or_else(|| io::ErrorKind::Unsupported.into())))
}

/// Refuses a ring without the features that the engine needs.
fn check(ring: &IoUring) -> io::Result<()> {
    let parameters = ring.params();
    let features = [
        ("EXT_ARG", parameters.is_feature_ext_arg()),
        ("NODROP", parameters.is_feature_nodrop()),
        ("SUBMIT_STABLE", parameters.is_feature_submit_stable()),
        ("RW_CUR_POS", parameters.is_feature_rw_cur_pos()),
        ("FAST_POLL", parameters.is_feature_fast_poll()),
    ];
    let mut probe = Probe::new();
    ring.submitter()
        .register_probe(&mut probe)
        .map_err(|error| lacking(&format!("PROBE ({error})")))?;
    let operations = [
        ("ACCEPT", opcode::Accept::CODE),
        ("ASYNC_CANCEL", opcode::AsyncCancel::CODE),
        ("CONNECT", opcode::Connect::CODE),
        ("FALLOCATE", opcode::Fallocate::CODE),
        ("FSYNC", opcode::Fsync::CODE),
        ("POLL_ADD", opcode::PollAdd::CODE),
        ("READ", opcode::Read::CODE),
        ("READV", opcode::Readv::CODE),
        ("RECV", opcode::Recv::CODE),
        ("RECVMSG", opcode::RecvMsg::CODE),
        ("SEND", opcode::Send::CODE),
        ("SENDMSG", opcode::SendMsg::CODE),
        ("SHUTDOWN", opcode::Shutdown::CODE),
        ("SYNC_FILE_RANGE", opcode::SyncFileRange::CODE),
        ("WRITE", opcode::Write::CODE),
        ("WRITEV", opcode::Writev::CODE),
    ];
    let missing_features = features.iter().filter(|(_, is_there)| !is_there).map(|it| it.0);
    let missing_operations =
        operations.iter().filter(|(_, code)| !probe.is_supported(*code)).map(|it| it.0);
    let missing: Vec<&str> = missing_features.chain(missing_operations).collect();
    if missing.is_empty() { Ok(()) } else { Err(lacking(&missing.join(", "))) }
}

fn lacking(what: &str) -> io::Error {
    let text = format!("this kernel's io_uring lacks {what}; Linux 5.11 is the first that has all");
    io::Error::new(io::ErrorKind::Unsupported, text)
}

/// Makes a ring with all flags that the kernel accepts.
pub(crate) fn build<S: squeue::EntryMarker>(
    builder: io_uring::Builder<S, cqueue::Entry>,
    entries: u32,
) -> io::Result<IoUring<S, cqueue::Entry>> {
    build_at(level()?, builder, entries).map_err(advise)
}

fn build_at<S: squeue::EntryMarker>(
    level: Level,
    mut builder: io_uring::Builder<S, cqueue::Entry>,
    entries: u32,
) -> io::Result<IoUring<S, cqueue::Entry>> {
    level.apply(&mut builder);
    builder.dontfork().setup_clamp().setup_cqsize((entries * 4).min(65_536));
    builder.build(entries)
}

fn advise(error: io::Error) -> io::Error {
    let advice = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "it is disabled by the sysctl kernel.io_uring_disabled or by a seccomp filter (as those of \
             containers)"
        }
        Some(libc::ENOSYS) => "this kernel has none, or a seccomp filter hides it",
        Some(libc::EINVAL) => "this kernel's is too old",
        Some(libc::ENOMEM) => "not enough locked memory; raise 'ulimit -l' or use fewer entries",
        _ => return error,
    };
    io::Error::new(error.kind(), format!("cannot make an io_uring: {error}: {advice}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: rings are made at every level that the kernel has, and at each a ring has the features
    /// that the engine uses.
    #[test]
    fn every_level_has_what_is_needed() {
        let Ok(best) = level() else { return println!("skipped: no io_uring") };
        for level in Level::ALL.into_iter().skip_while(|&it| it != best) {
            let ring = build_at(level, IoUring::builder(), 8).unwrap();
            check(&ring).unwrap();
        }
    }

    /// Goal: a refusal is reported with its cause.
    #[test]
    fn refusals_name_their_cause() {
        let of = |errno| advise(io::Error::from_raw_os_error(errno));
        assert!(of(libc::EPERM).to_string().contains("kernel.io_uring_disabled"));
        assert!(of(libc::ENOSYS).to_string().contains("seccomp"));
        assert_eq!(of(libc::EIO).raw_os_error(), Some(libc::EIO));
        assert!(lacking("SHUTDOWN").to_string().contains("SHUTDOWN"));
    }
}
