//! The CPUs on which callers run, for `/dev/fuse`, whose requests do not show them.
//!
//! `/proc/THREAD/stat` has the CPU. A confined process cannot open that file, so it asks the helper
//! that mounts (`Mounter`) and gets the answer with a later request: nothing waits
//! for an answer.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};

/// The bytes of a question (a thread id), and of an answer (the same, and the CPU).
const QUESTION_BYTES: usize = 4;
const ANSWER_BYTES: usize = 6;
/// The CPU in an answer about a thread that does not exist.
const UNKNOWN: u16 = u16::MAX;

/// Where to ask for the CPU of a thread.
#[derive(Debug)]
pub(crate) enum Cpus {
    /// `/proc` of this process.
    Own,
    /// A helper at the other end of a socket.
    Helper(OwnedFd),
    /// Nowhere.
    Unknown,
}

impl Cpus {
    /// Returns the place to ask another process, which gets one end of a socket to [`serve`].
    pub(super) fn of_another(give: impl FnOnce(&OwnedFd) -> Result<(), String>) -> Self {
        let asked = pair().map_err(|error| error.to_string()).and_then(|(ours, theirs)| {
            give(&theirs)?;
            Ok(ours)
        });
        asked.map_or_else(
            |error| {
                tracing::debug!(error, "the CPUs of callers are not known");
                Self::Unknown
            },
            Self::Helper,
        )
    }

    /// Asks for the CPU of a thread. Returns it if it is known at once; else it comes by
    /// [`Cpus::answer`].
    pub(crate) fn ask(&self, thread: u32) -> Option<u16> {
        match self {
            Self::Own => cpu_of(thread),
            Self::Helper(socket) => {
                // A full socket, or a helper that has ended, gives no answer.
                let _ =
                    send(socket, &thread.to_le_bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
                None
            }
            Self::Unknown => None,
        }
    }

    /// Returns a thread and its CPU if an answer has come.
    pub(crate) fn answer(&self) -> Option<(u32, u16)> {
        let Self::Helper(socket) = self else { return None };
        let mut answer = [0; ANSWER_BYTES];
        let (received, _) = recv(socket, &mut answer, RecvFlags::DONTWAIT).ok()?;
        let (thread, cpu) = answer.split_first_chunk::<QUESTION_BYTES>()?;
        let cpu = u16::from_le_bytes(cpu.try_into().ok()?);
        (received == ANSWER_BYTES && cpu != UNKNOWN).then(|| (u32::from_le_bytes(*thread), cpu))
    }
}

fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Answers questions until the other side closes the socket.
pub(super) fn serve(socket: &OwnedFd) -> io::Result<()> {
    loop {
        let mut question = [0; QUESTION_BYTES];
        let received = match recv(socket, &mut question, RecvFlags::empty()) {
            Err(rustix::io::Errno::INTR) => continue,
            result => result?.0,
        };
        if received != QUESTION_BYTES {
            return Ok(());
        }
        let cpu = cpu_of(u32::from_le_bytes(question)).unwrap_or(UNKNOWN);
        let mut answer = [0; ANSWER_BYTES];
        answer[..QUESTION_BYTES].copy_from_slice(&question);
        answer[QUESTION_BYTES..].copy_from_slice(&cpu.to_le_bytes());
        send(socket, &answer, SendFlags::NOSIGNAL)?;
    }
}

/// Returns the CPU on which a thread runs, or ran last.
fn cpu_of(thread: u32) -> Option<u16> {
    parse_stat(&std::fs::read(format!("/proc/{thread}/stat")).ok()?)
}

/// Returns field 39, `processor`, of a `stat` file (`proc_pid_stat(5)`). The second field, the name
/// in parentheses, may contain anything.
fn parse_stat(bytes: &[u8]) -> Option<u16> {
    let end = bytes.iter().rposition(|&byte| byte == b')')?;
    let rest = std::str::from_utf8(bytes.get(end + 1..)?).ok()?;
    rest.split_ascii_whitespace().nth(36)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the CPU is found behind any name, and other text is refused.
    #[test]
    fn stat_files_are_read() {
        let rest = (3..=52).map(|field| field.to_string()).collect::<Vec<_>>().join(" ");
        for name in ["cat", "a b) 7 (c", "\u{fc}"] {
            assert_eq!(parse_stat(format!("12 ({name}) {rest}\n").as_bytes()), Some(39), "{name}");
        }
        for text in ["", "12 (cat) S 1", "12 cat S", ")"] {
            assert_eq!(parse_stat(text.as_bytes()), None, "{text}");
        }
        assert!(cpu_of(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned()).is_some());
        assert_eq!(cpu_of(u32::MAX), None);
    }

    /// Goal: a helper answers for threads that exist, and ends with the other side.
    #[test]
    fn a_helper_answers() {
        let (ours, theirs) = pair().expect("a socket");
        let helper = std::thread::spawn(move || serve(&theirs));
        let cpus = Cpus::Helper(ours);
        let own = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        assert_eq!(cpus.ask(u32::MAX), None);
        assert_eq!(cpus.ask(own), None, "not at once");
        let (thread, cpu) = loop {
            if let Some(answer) = cpus.answer() {
                break answer;
            }
            std::thread::yield_now();
        };
        assert_eq!(thread, own, "nothing is known of the other thread");
        assert!(usize::from(cpu) < rustix::thread::CpuSet::MAX_CPU);
        drop(cpus);
        helper.join().expect("no panic").expect("it ends in order");
    }
}
