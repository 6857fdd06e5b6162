//! Mounting by another process, for a process that confines itself.
//!
//! Landlock forbids every change of mounts to a confined process and its children. So a helper
//! starts before the confinement and does the mounting. It runs only [`serve_mounter`]; a
//! [`Mounter`] is the other side. The helper knows mount point and options from its start. Over the
//! socket (`SOCK_SEQPACKET`) come only the orders to mount (answered with the open device), to make
//! the kernel read further ahead, to say on which CPUs callers run, and to unmount. So an attacker
//! in control of the confined process gets this one mount and such numbers from the helper, and
//! nothing else.
//!
//! The helper ends when the other side closes its socket. The mount then stays: a dead process
//! leaves a mount that returns `ENOTCONN` to its users, not an empty directory that they would
//! write into.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

use super::{Cpus, MountOptions, Unmounter, make};
use crate::error::FuseError;

/// Orders.
const MOUNT: u8 = b'm';
const UNMOUNT: u8 = b'u';
const WIDEN: u8 = b'w';
/// Comes with a socket for questions, see [`super::cpus`].
const SERVE_CPUS: u8 = b'c';

/// First bytes of answers; after `FAILED` follows the text of the error.
const DONE: u8 = 0;
const FAILED: u8 = 1;

/// Longest answer.
const ANSWER_BYTES_MAX: usize = 4096;

/// The connection to a process that mounts; see the module.
#[derive(Debug)]
pub struct Mounter {
    /// Locked, because there is one order at a time.
    socket: Mutex<OwnedFd>,
}

impl Mounter {
    /// Returns a mounter, and the socket for the helper that serves it.
    ///
    /// # Errors
    /// Those of `socketpair`.
    pub fn new() -> io::Result<(Mounter, OwnedFd)> {
        let (ours, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        Ok((Mounter { socket: Mutex::new(ours) }, theirs))
    }

    /// Ends the helper; orders fail from now on.
    pub fn close(&self) {
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        // It fails only if the helper is gone already.
        let _ = rustix::net::shutdown(&*socket, rustix::net::Shutdown::Both);
    }

    pub(super) fn mount(&self) -> Result<OwnedFd, FuseError> {
        let device = self.order(MOUNT, None).map_err(FuseError::Mounter)?;
        device.ok_or_else(|| FuseError::Mounter("the helper did not pass the device".into()))
    }

    pub(super) fn widen(&self) -> Result<(), String> {
        self.order(WIDEN, None).map(drop)
    }

    /// Returns a place to ask for the CPUs of callers: a socket at which the helper answers.
    pub(crate) fn cpus(&self) -> Cpus {
        Cpus::of_another(|socket| self.order(SERVE_CPUS, Some(socket)).map(drop))
    }

    pub(super) fn unmount(&self) -> Result<(), String> {
        self.order(UNMOUNT, None).map(drop)
    }

    fn order(&self, order: u8, with: Option<&OwnedFd>) -> Result<Option<OwnedFd>, String> {
        let gone = |error: io::Error| format!("the helper that mounts is gone: {error}");
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        send(&socket, &[order], with).map_err(gone)?;
        let mut answer = [0; ANSWER_BYTES_MAX];
        let (len, device) = receive(&socket, &mut answer).map_err(gone)?;
        match answer[..len] {
            [DONE, ..] => Ok(device),
            [FAILED, ref words @ ..] => Err(String::from_utf8_lossy(words).into_owned()),
            _ => Err(gone(io::ErrorKind::UnexpectedEof.into())),
        }
    }
}

/// Carries out the orders of a [`Mounter`] over `socket` for the mount at `path`, until the other
/// side closes the socket. Runs in a process of its own that is not confined.
///
/// # Errors
/// If the socket fails. Errors of the mount are sent to the other side.
pub fn serve_mounter(socket: &OwnedFd, path: &Path, options: &MountOptions) -> io::Result<()> {
    let mut mounted: Option<Unmounter> = None;
    loop {
        let mut order = [0; 1];
        let (len, sent) = receive(socket, &mut order)?;
        let result = match order[..len] {
            [] => return Ok(()),
            [MOUNT] if mounted.is_some() => Err("it is mounted already".to_owned()),
            [MOUNT] => make(path, options, None).map_err(|error| error.to_string()).map(
                |(unmounter, device)| {
                    mounted = Some(unmounter);
                    Some(device)
                },
            ),
            [UNMOUNT] => {
                let result = mounted.as_ref().map_or(Ok(()), Unmounter::unmount);
                if result.is_ok() {
                    mounted = None;
                }
                result.map(|()| None).map_err(|error| error.to_string())
            }
            [WIDEN] => match &mounted {
                Some(mounted) => mounted.widen_read_ahead().map(|()| None),
                None => Err("nothing is mounted".to_owned()),
            },
            [SERVE_CPUS] => match sent {
                Some(questions) => serve_cpus(questions).map(|()| None),
                None => Err("the socket for questions is missing".to_owned()),
            },
            _ => Err(format!("{order:?} is no order")),
        };
        // The helper must not keep the device: the connection lives as long as a process has it
        // open.
        match result {
            Ok(device) => send(socket, &[DONE], device.as_ref())?,
            Err(words) => {
                let mut answer = vec![FAILED];
                answer.extend(words.bytes().take(ANSWER_BYTES_MAX - 1));
                send(socket, &answer, None)?;
            }
        }
    }
}

/// Answers questions about the CPUs of callers on a thread, until the other side closes the socket.
fn serve_cpus(questions: OwnedFd) -> Result<(), String> {
    let serve = move || {
        if let Err(error) = super::cpus::serve(&questions) {
            tracing::debug!(%error, "questions about CPUs end");
        }
    };
    let started = std::thread::Builder::new().name("caller-cpus".into()).spawn(serve);
    started.map(drop).map_err(|error| error.to_string())
}

fn send(socket: &OwnedFd, bytes: &[u8], device: Option<&OwnedFd>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = device.map(|device| [device.as_fd()]);
    if let Some(descriptors) = &descriptors {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let slices = [IoSlice::new(bytes)];
    loop {
        match rustix::net::sendmsg(socket, &slices, &mut control, SendFlags::NOSIGNAL) {
            Err(rustix::io::Errno::INTR) => {}
            result => return Ok(result.map(drop)?),
        }
    }
}

/// Returns one message's length (0 at the end) and the descriptor that came with it.
pub(super) fn receive(socket: &OwnedFd, bytes: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let len = loop {
        let mut slices = [IoSliceMut::new(bytes)];
        match rustix::net::recvmsg(socket, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            result => break result?.bytes,
        }
    };
    let device = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok((len, device))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount::Mount;
    use std::sync::Arc;

    /// Goal: the helper mounts on order, passes a device that works and keeps none, refuses a
    /// second mount, unmounts, reports failures, and ends with the other side.
    #[test]
    fn another_process_mounts() {
        if std::fs::metadata("/dev/fuse").is_err() {
            let is_ci = std::env::var("CI").is_ok_and(|value| value == "true");
            assert!(!is_ci, "CI=true, but /dev/fuse is missing");
            eprintln!("skipped: /dev/fuse is missing");
            return;
        }
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().canonicalize().expect("its path");
        let (mounter, socket) = Mounter::new().expect("a socket");
        let mounter = Arc::new(mounter);
        let at = path.clone();
        let helper =
            std::thread::spawn(move || serve_mounter(&socket, &at, &MountOptions::default()));
        let (mount, device) =
            Mount::new(&path, &MountOptions::default(), Some(Arc::clone(&mounter)))
                .expect("mounted");
        assert!(mount.connection_number().is_some());
        let mut init = [0; 8192];
        let len = rustix::io::read(&device, &mut init).expect("INIT arrives");
        assert!(len >= 40 + 16, "{len} bytes");
        match mount.unmounter().widen_read_ahead() {
            Ok(()) => {
                let number = mount.connection_number().expect("a number");
                let path = format!("/sys/class/bdi/0:{number}/read_ahead_kb");
                let set = std::fs::read_to_string(path).expect("readable");
                assert_eq!(set.trim(), (super::super::READ_AHEAD_BYTES >> 10).to_string());
            }
            // Only root may.
            Err(error) => assert!(!rustix::process::geteuid().is_root(), "{error}"),
        }
        let again = mounter.mount().expect_err("mounted already").to_string();
        assert!(again.contains("already"), "{again}");
        mount.unmounter().unmount().expect("unmounted");
        assert_eq!(super::super::mountinfo::find(&path).expect("readable"), None);
        std::fs::remove_dir(&path).expect("removed");
        let missing = mounter.mount().expect_err("no mount point").to_string();
        assert!(missing.contains("existing directory"), "{missing}");
        drop((mount, device));
        mounter.close();
        helper.join().expect("no panic").expect("it ends in order");
        let gone = mounter.mount().expect_err("the helper is gone").to_string();
        assert!(gone.contains("gone"), "{gone}");
    }
}
