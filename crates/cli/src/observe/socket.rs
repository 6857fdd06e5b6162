//! Unix sockets with paths of any length: the kernel accepts 107 bytes, and the directories of jobs
//! may be longer.

use anyhow::Context;
use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Returns the open directory of a socket, and a short path of the socket through it.
fn short(path: &Path) -> io::Result<(OwnedFd, PathBuf)> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(directory, flags, Mode::empty())?;
    let mut short = OsString::from(format!("/proc/self/fd/{}/", directory.as_raw_fd()));
    short.push(name);
    Ok((directory, short.into()))
}

/// Listens at a path that only this user can open. Replaces the socket of an earlier process.
///
/// # Errors
/// If another file is there, or the socket cannot be created.
pub(crate) fn listen(path: &Path) -> anyhow::Result<UnixListener> {
    let is_socket = |data: std::fs::Metadata| data.file_type().is_socket();
    if std::fs::symlink_metadata(path).is_ok_and(is_socket) {
        std::fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    let bind = || {
        let (_directory, short) = short(path)?;
        let listener = UnixListener::bind(&short)?;
        // Until here the umask has kept other users out.
        std::fs::set_permissions(&short, std::fs::Permissions::from_mode(0o600))?;
        Ok(listener)
    };
    bind().map_err(|error: io::Error| {
        anyhow::Error::new(error).context(format!("cannot listen at {}", path.display()))
    })
}

/// Connects to a socket. Does not wait for a listener that accepts nothing.
///
/// # Errors
/// Those of connect(2): `WouldBlock` if the listener's queue is full.
pub(crate) fn connect(path: &Path) -> io::Result<UnixStream> {
    let (_directory, short) = short(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(short)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    /// Goal: a listener that accepts nothing does not hold up those that connect.
    #[test]
    fn full_queues_are_not_waited_for() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("a.sock");
        let listener = listen(&path).unwrap();
        rustix::net::listen(&listener, 1).unwrap();
        let mut waiting = Vec::new();
        let refused = loop {
            match connect(&path) {
                Ok(stream) => waiting.push(stream),
                Err(error) => break error,
            }
            assert!(waiting.len() < 10);
        };
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
    }

    /// Goal: long paths work, only the owner can open the socket, and a later process replaces the
    /// socket of a dead one, but not another file.
    #[test]
    fn sockets_have_any_path() {
        let base = tempfile::tempdir().unwrap();
        let directory = base.path().join("d".repeat(200));
        std::fs::create_dir(&directory).unwrap();
        let path = directory.join("node1.sock");
        drop(listen(&path).unwrap());
        assert!(connect(&path).is_err());
        let listener = listen(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let mut asking = connect(&path).unwrap();
        asking.write_all(b"x").unwrap();
        let mut byte = [0];
        listener.accept().unwrap().0.read_exact(&mut byte).unwrap();
        assert_eq!(byte, *b"x");
        let file = directory.join("file");
        std::fs::write(&file, "kept").unwrap();
        assert!(listen(&file).is_err());
        assert_eq!(std::fs::read(&file).unwrap(), b"kept");
    }
}
