//! Which callers one server may serve, and the path of its socket.
//!
//! A server acts for its callers with its own rights, so they must be the same: user and group ids
//! of all kinds, supplementary groups, capabilities, confinement (`no_new_privs`, seccomp) and the
//! user namespace. All of this makes one text. Its hash is part of the socket's name, so that a
//! caller with other rights starts its own server. A server compares the whole text of each caller,
//! which the kernel names (`SO_PEERCRED`), with its own.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The lines of `/proc/PID/status` that are compared.
const FIELDS: [&str; 7] =
    ["Uid:", "Gid:", "Groups:", "CapEff:", "CapBnd:", "NoNewPrivs:", "Seccomp:"];

/// Returns the rights of a process (`self` or its number), as a text to be compared.
pub(super) fn rights_of(process: &str) -> io::Result<String> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let mut text = String::new();
    for line in status.lines().filter(|line| FIELDS.iter().any(|field| line.starts_with(field))) {
        text.push_str(line);
        text.push('\n');
    }
    let namespace = std::fs::read_link(format!("/proc/{process}/ns/user"))?;
    text.push_str(&namespace.to_string_lossy());
    Ok(text)
}

/// Returns whether the process at the other end of a socket has this process's rights.
pub(super) fn is_equal_peer(socket: impl AsFd) -> io::Result<bool> {
    let peer = rustix::net::sockopt::socket_peercred(socket)?;
    if peer.uid != rustix::process::geteuid() {
        return Ok(false);
    }
    // A process of another process namespace has no number here, and reading fails.
    let rights = rights_of(&peer.pid.as_raw_nonzero().to_string())?;
    Ok(rights == rights_of("self")?)
}

/// Returns where the server of these rights listens.
pub(super) fn socket_path() -> io::Result<PathBuf> {
    let hash = hash(rights_of("self")?.as_bytes());
    Ok(runtime_directory()?.join(format!("tsumugi-union-{hash:016x}")))
}

/// Returns the user's runtime directory, which no other user can write to.
fn runtime_directory() -> io::Result<PathBuf> {
    let uid = rustix::process::geteuid().as_raw();
    let named = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let usual = PathBuf::from(OsString::from(format!("/run/user/{uid}")));
    for path in named.into_iter().chain([usual]) {
        if is_private(&path, uid) {
            return Ok(path);
        }
    }
    let own = if uid == 0 { "/run/tsumugi".into() } else { format!("/tmp/tsumugi-{uid}") };
    let own = PathBuf::from(own);
    match std::fs::DirBuilder::new().mode(0o700).create(&own) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    if is_private(&own, uid) {
        return Ok(own);
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!("{} belongs to others", own.display()),
    ))
}

/// Returns whether a path is a directory that only this user can write.
fn is_private(path: &Path, uid: u32) -> bool {
    std::fs::symlink_metadata(path)
        .is_ok_and(|found| found.is_dir() && found.uid() == uid && found.mode() & 0o022 == 0)
}

/// FNV-1a, 64 bits: the name needs no secrecy, since the server compares the whole text.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, &byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a process equals itself, and the socket lies where no other user can write.
    #[test]
    fn own_rights_are_equal() {
        let (one, _other) = rustix::net::socketpair(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::SEQPACKET,
            rustix::net::SocketFlags::CLOEXEC,
            None,
        )
        .expect("a pair");
        assert!(is_equal_peer(&one).expect("the rights"));
        let path = socket_path().expect("a path");
        let uid = rustix::process::geteuid().as_raw();
        assert!(is_private(path.parent().expect("a directory"), uid));
        assert!(rights_of("self").expect("rights").contains("CapEff:"));
    }
}
