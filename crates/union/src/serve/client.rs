//! The caller's side: passing a mount on to the user's server, which is started if there is none.
//!
//! Layers first: the server opens and locks them before anything is mounted, so that errors are
//! reported while the mount point is unchanged. A server that is ending (its last mount is gone)
//! closes the connection before it answers; the caller then starts again.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::wire::{Channel, DESCRIPTORS_MAX, PACKET_BYTES_MAX, Packet, Reader, Writer};
use super::{PROTOCOL, kind, rights};
use crate::error::UnionError;
use crate::layers::Directories;
use crate::mount::mount_options;
use crate::options::Options;

/// Longest options; a packet has room for a path and some numbers besides.
const TEXT_BYTES_MAX: usize = PACKET_BYTES_MAX - 8192;
/// How often a server that ends is tried again, and how long is waited between.
const ATTEMPTS: usize = 100;
const ATTEMPT_STEP: Duration = Duration::from_millis(20);
/// Connections that may wait for a server that is starting again.
const BACKLOG: i32 = 1024;

/// The outcome of handing a mount over.
#[derive(Debug)]
pub enum HandOver {
    /// It is mounted and served.
    Served,
    /// This server cannot serve it (and why): serve it in a process of its own.
    Alone(String),
}

/// How one attempt ended.
enum Attempt {
    Done(HandOver),
    /// The server ended meanwhile.
    Gone(io::Error),
}

/// Hands a mount over. `text` is what `options` were read from; `start` starts a keeper that gets
/// the listening socket as its standard input.
///
/// # Errors
/// Errors of the layers or the mount, as if it were mounted here.
pub fn hand_over(
    text: &[u8],
    options: &Options,
    mountpoint: &Path,
    start: impl Fn(OwnedFd) -> io::Result<()>,
) -> Result<HandOver, UnionError> {
    options.check()?;
    let directories = Directories::open(options)?;
    // The server has another working directory.
    let text = &options.with_real_paths()?.replace_layers(text);
    if text.len() > TEXT_BYTES_MAX {
        return Ok(HandOver::Alone("the layers' paths are too long for a packet".into()));
    }
    let path = match rights::socket_path() {
        Ok(path) => path,
        Err(error) => return Ok(HandOver::Alone(format!("no runtime directory: {error}"))),
    };
    let mut last = io::Error::from(io::ErrorKind::NotConnected);
    for _ in 0..ATTEMPTS {
        let channel = match connect(&path) {
            Ok(channel) => channel,
            Err(Errno::NOENT | Errno::CONNREFUSED) => {
                start_one(&path, &start).map_err(UnionError::Serving)?;
                continue;
            }
            Err(errno) => return Ok(HandOver::Alone(format!("{}: {errno}", path.display()))),
        };
        match attempt(&channel, text, options, mountpoint, &directories)? {
            Attempt::Done(outcome) => return Ok(outcome),
            Attempt::Gone(error) => last = error,
        }
        std::thread::sleep(ATTEMPT_STEP);
    }
    Err(UnionError::Serving(last))
}

fn socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

fn connect(path: &Path) -> Result<Channel, Errno> {
    let socket = socket()?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(Channel::new(socket))
}

/// Creates the socket and starts the listening process; one caller at a time.
fn start_one(path: &Path, start: &impl Fn(OwnedFd) -> io::Result<()>) -> io::Result<()> {
    let lock_path = path.with_extension("lock");
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let lock = rustix::fs::open(&lock_path, flags, Mode::RUSR | Mode::WUSR)?;
    rustix::io::retry_on_intr(|| rustix::fs::flock(&lock, FlockOperation::LockExclusive))?;
    if connect(path).is_ok() {
        return Ok(());
    }
    match rustix::fs::unlink(path) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno.into()),
    }
    let socket = socket()?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::fs::chmod(path, Mode::RUSR | Mode::WUSR)?;
    rustix::net::listen(&socket, BACKLOG)?;
    start(socket)
}

fn attempt(
    channel: &Channel,
    text: &[u8],
    options: &Options,
    mountpoint: &Path,
    directories: &Directories,
) -> Result<Attempt, UnionError> {
    let mountpoint = mountpoint
        .canonicalize()
        .map_err(|source| fuse::FuseError::MountPoint { path: mountpoint.into(), source })?;
    if let Err(error) = ask(channel, text, &mountpoint, &directories.descriptors()) {
        return Ok(Attempt::Gone(error));
    }
    match answer(channel)? {
        Answer::Ready => {}
        Answer::Refused(reason) => return Ok(Attempt::Done(HandOver::Alone(reason))),
        Answer::Served => return Ok(Attempt::Gone(io::ErrorKind::InvalidData.into())),
        Answer::Gone(error) => return Ok(Attempt::Gone(error)),
    }
    let (unmounter, device) =
        fuse::mount_device(&mountpoint, &mount_options(options, options.upper.is_none()))?;
    let number = unmounter.connection_number().unwrap_or(0);
    let order = Writer::new(kind::DEVICE).number(number.into()).done();
    let sent = channel.send(&order, &[device.as_fd()]);
    // From now on the connection lives as long as the server has it.
    drop(device);
    let result = match sent {
        Ok(()) => answer(channel),
        Err(error) => Ok(Answer::Gone(error)),
    };
    match result {
        Ok(Answer::Served) => Ok(Attempt::Done(HandOver::Served)),
        Ok(Answer::Gone(error)) => {
            unmounter.unmount()?;
            Ok(Attempt::Gone(error))
        }
        Ok(Answer::Ready | Answer::Refused(_)) => {
            unmounter.unmount()?;
            Ok(Attempt::Gone(io::ErrorKind::InvalidData.into()))
        }
        Err(error) => {
            unmounter.unmount()?;
            Err(error)
        }
    }
}

/// Sends the server the mount request.
fn ask(
    channel: &Channel,
    text: &[u8],
    mountpoint: &Path,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    use std::os::unix::ffi::OsStrExt;
    let order = Writer::new(kind::MOUNT)
        .number(PROTOCOL)
        .number(descriptors.len() as u64)
        .bytes(text)
        .bytes(mountpoint.as_os_str().as_bytes())
        .done();
    let mut packets = descriptors.chunks(DESCRIPTORS_MAX);
    channel.send(&order, packets.next().unwrap_or_default())?;
    for packet in packets {
        channel.send(&[kind::MORE], packet)?;
    }
    Ok(())
}

/// An answer of the server.
enum Answer {
    Ready,
    Served,
    Refused(String),
    Gone(io::Error),
}

fn answer(channel: &Channel) -> Result<Answer, UnionError> {
    let packet = match channel.receive() {
        Ok(Some(packet)) => packet,
        Ok(None) => return Ok(Answer::Gone(io::ErrorKind::UnexpectedEof.into())),
        Err(error) => return Ok(Answer::Gone(error)),
    };
    let Packet { bytes, .. } = packet;
    let words = || {
        let mut reader = Reader::new(&bytes).map(|(_, reader)| reader);
        let words = reader.as_mut().and_then(Reader::bytes).unwrap_or_default();
        String::from_utf8_lossy(words).into_owned()
    };
    match bytes[0] {
        kind::READY => Ok(Answer::Ready),
        kind::SERVED => Ok(Answer::Served),
        kind::REFUSED => Ok(Answer::Refused(words())),
        kind::FAILED => Err(UnionError::Refused(words())),
        _ => Ok(Answer::Refused("the server speaks another version".into())),
    }
}
