//! The keeper: it starts the server, holds the open descriptors that must survive it, and starts it
//! again.
//!
//! It does as little as possible, so that it has no reason to fail: it receives descriptors and
//! state from the server. When the server closes its end of the socket, the keeper waits for the
//! process. It ends if nothing is mounted; otherwise it starts the next server and sends it
//! everything. A server that dies repeatedly is started with growing pauses.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fuse::{Capabilities, Negotiated, Transport};

use super::book::Pages;
use super::wire::{Channel, DESCRIPTORS_MAX, Packet, Reader, Writer};
use super::{PROTOCOL, kind};
use crate::layers::Directories;

/// Least lifetime of a server that counts as working.
const LIVES_AT_LEAST: Duration = Duration::from_secs(5);
/// The pause after the second early death in a row, doubled with each further one.
const PAUSE_FIRST: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// The state that is kept of a mount.
#[derive(Debug, Default)]
struct Entry {
    descriptors: Vec<OwnedFd>,
    /// The server's own words; none until it has sent all descriptors.
    words: Option<Vec<u8>>,
    /// Inodes without a name, by node: the packet that they came with.
    gone: BTreeMap<u64, (Vec<u8>, OwnedFd)>,
}

/// Runs the keeper. `start` starts a server with this socket to its keeper.
///
/// # Errors
/// If sockets fail or no server can be started.
pub fn run_keeper(start: impl Fn(OwnedFd) -> io::Result<Child>) -> io::Result<()> {
    let mut entries = BTreeMap::new();
    let mut pause = Duration::ZERO;
    loop {
        let (channel, theirs) = Channel::pair()?;
        let since = Instant::now();
        let mut server = start(theirs)?;
        let ended = give(&channel, &entries).and_then(|()| take(&channel, &mut entries));
        if let Err(error) = ended {
            tracing::warn!(%error, "the server's socket failed");
        }
        drop(channel);
        // Its locks, and its reads of the devices, end with the process.
        let status = server.wait()?;
        entries.retain(|_, entry: &mut Entry| entry.words.is_some());
        tracing::info!(%status, mounts = entries.len(), "the server has ended");
        if entries.is_empty() {
            return Ok(());
        }
        if since.elapsed() >= LIVES_AT_LEAST {
            pause = Duration::ZERO;
        } else {
            std::thread::sleep(pause);
            pause = (pause * 2).clamp(PAUSE_FIRST, PAUSE_MAX);
        }
    }
}

/// Gives a new server everything.
fn give(channel: &Channel, entries: &BTreeMap<u64, Entry>) -> io::Result<()> {
    for (&id, entry) in entries {
        let Some(words) = &entry.words else { continue };
        let part = Writer::new(kind::KEEP).number(id).done();
        for descriptors in entry.descriptors.chunks(DESCRIPTORS_MAX) {
            let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
            channel.send(&part, &descriptors)?;
        }
        for (packet, descriptor) in entry.gone.values() {
            channel.send(packet, &[descriptor.as_fd()])?;
        }
        channel.send(words, &[])?;
    }
    channel.send(&[kind::ALL], &[])
}

/// Receives the packets of the server until it ends.
fn take(channel: &Channel, entries: &mut BTreeMap<u64, Entry>) -> io::Result<()> {
    while let Some(mut packet) = channel.receive()? {
        let Some((kind, mut reader)) = Reader::new(&packet.bytes) else { continue };
        let Some(id) = reader.number() else { continue };
        match kind {
            kind::KEEP => {
                let entry: &mut Entry = entries.entry(id).or_default();
                entry.descriptors.extend(packet.descriptors);
            }
            kind::KEPT => entries.entry(id).or_default().words = Some(packet.bytes),
            kind::GONE => {
                if let (Some(node), Some(descriptor)) = (reader.number(), packet.descriptors.pop())
                {
                    let entry = entries.entry(id).or_default();
                    entry.gone.insert(node, (packet.bytes, descriptor));
                }
            }
            kind::FORGOTTEN => {
                if let (Some(node), Some(entry)) = (reader.number(), entries.get_mut(&id)) {
                    entry.gone.remove(&node);
                }
            }
            kind::ENDED => drop(entries.remove(&id)),
            _ => {}
        }
    }
    Ok(())
}

/// A mount that was kept, as the next server gets it.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) id: u64,
    /// The options' text.
    pub(super) text: Vec<u8>,
    pub(super) mountpoint: PathBuf,
    /// The connection's number.
    pub(super) number: u32,
    pub(super) agreed: Negotiated,
    pub(super) device: OwnedFd,
    pub(super) pages: Pages,
    pub(super) directories: Vec<OwnedFd>,
    pub(super) gone: Vec<Gone>,
}

/// A file without a name that was kept.
#[derive(Debug)]
pub(super) struct Gone {
    pub(super) node: u64,
    /// Whether it is not a lower one.
    pub(super) is_own: bool,
    pub(super) descriptor: OwnedFd,
}

/// The state of a mount that the keeper gets.
#[derive(Debug)]
pub(super) struct ToKeep<'a> {
    pub(super) id: u64,
    pub(super) text: &'a [u8],
    pub(super) mountpoint: &'a Path,
    pub(super) number: u32,
    pub(super) agreed: &'a Negotiated,
    pub(super) device: &'a OwnedFd,
    pub(super) pages: &'a Pages,
    pub(super) directories: &'a Directories,
}

/// The keeper as the server knows it.
#[derive(Debug, Clone)]
pub(super) struct Keeper(Arc<Channel>);

impl Keeper {
    /// Receives what an earlier server has given to keep.
    pub(super) fn connect(socket: OwnedFd) -> io::Result<(Self, Vec<Kept>)> {
        let channel = Channel::new(socket);
        let mut kept = Vec::new();
        let (mut descriptors, mut gone) = (Vec::new(), Vec::new());
        loop {
            let mut packet = channel.receive()?.ok_or(io::ErrorKind::UnexpectedEof)?;
            match packet.bytes[0] {
                kind::ALL => break,
                kind::KEEP => descriptors.append(&mut packet.descriptors),
                kind::GONE => gone.extend(read_gone(packet)),
                kind::KEPT => {
                    let descriptors = std::mem::take(&mut descriptors);
                    let gone = std::mem::take(&mut gone);
                    let mount = read_kept(&packet.bytes, descriptors, gone);
                    if mount.is_none() {
                        tracing::error!("what the keeper has kept cannot be read");
                    }
                    kept.extend(mount);
                }
                _ => {}
            }
        }
        Ok((Self(Arc::new(channel)), kept))
    }

    /// Hands a mount to the keeper. A missing keeper is logged once, and harms no mount until the
    /// server dies too.
    pub(super) fn keep(&self, what: &ToKeep<'_>) {
        let &ToKeep { id, text, mountpoint, number, agreed, device, pages, directories } = what;
        let words = Writer::new(kind::KEPT)
            .number(id)
            .number(PROTOCOL)
            .bytes(text)
            .bytes(mountpoint.as_os_str().as_bytes())
            .number(number.into())
            .number(agreed.minor.into())
            .number(agreed.capabilities.bits())
            .number(agreed.max_write_bytes.into())
            .number(agreed.max_readahead_bytes.into())
            .done();
        let mut all = vec![device.as_fd(), pages.names.as_fd(), pages.handles.as_fd()];
        all.extend(directories.descriptors());
        let part = Writer::new(kind::KEEP).number(id).done();
        let mut sent = Ok(());
        for descriptors in all.chunks(DESCRIPTORS_MAX) {
            sent = sent.and_then(|()| self.0.send(&part, descriptors));
        }
        if let Err(error) = sent.and_then(|()| self.0.send(&words, &[])) {
            tracing::warn!(%error, "the keeper is gone: a killed server stays dead");
        }
    }

    /// Keeps a file that has no name any more.
    pub(super) fn keep_gone(&self, id: u64, node: u64, is_own: bool, descriptor: BorrowedFd<'_>) {
        let words = Writer::new(kind::GONE).number(id).number(node).number(is_own.into()).done();
        if let Err(error) = self.0.send(&words, &[descriptor]) {
            tracing::debug!(%error, "an open file without a name will not survive the server");
        }
    }

    /// No program has it open any more.
    pub(super) fn drop_gone(&self, id: u64, node: u64) {
        // A keeper that is gone keeps nothing.
        let _ = self.0.send(&Writer::new(kind::FORGOTTEN).number(id).number(node).done(), &[]);
    }

    /// A mount has ended.
    pub(super) fn forget(&self, id: u64) {
        // A keeper that is gone keeps nothing.
        let _ = self.0.send(&Writer::new(kind::ENDED).number(id).done(), &[]);
    }
}

fn read_gone(mut packet: Packet) -> Option<Gone> {
    let descriptor = packet.descriptors.pop()?;
    let (_, mut reader) = Reader::new(&packet.bytes)?;
    let (_id, node) = (reader.number()?, reader.number()?);
    let is_own = reader.number()? != 0;
    Some(Gone { node, is_own, descriptor })
}

fn read_kept(words: &[u8], descriptors: Vec<OwnedFd>, gone: Vec<Gone>) -> Option<Kept> {
    let (_, mut reader) = Reader::new(words)?;
    let id = reader.number()?;
    if reader.number()? != PROTOCOL {
        return None;
    }
    let text = reader.bytes()?.to_vec();
    let mountpoint = PathBuf::from(OsString::from_vec(reader.bytes()?.to_vec()));
    let mut small = || reader.number().and_then(|number| u32::try_from(number).ok());
    let (number, minor) = (small()?, small()?);
    let capabilities = Capabilities::from_bits(reader.number()?);
    let mut small = || reader.number().and_then(|number| u32::try_from(number).ok());
    let agreed = Negotiated {
        minor,
        capabilities,
        max_write_bytes: small()?,
        max_readahead_bytes: small()?,
        transport: Transport::Device,
        transport_reason: "taken over".into(),
    };
    let mut descriptors = descriptors.into_iter();
    let device = descriptors.next()?;
    let pages = Pages { names: descriptors.next()?, handles: descriptors.next()? };
    let directories = descriptors.collect();
    Some(Kept { id, text, mountpoint, number, agreed, device, pages, directories, gone })
}
