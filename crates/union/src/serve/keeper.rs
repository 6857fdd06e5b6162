//! The keeper: starts the server, holds what only open descriptors can hold, and starts it anew.
//!
//! It does as little as possible, so that it has no reason to fail: it reads what the server gives
//! it to keep, and when the server's end of the socket is closed it waits for the process, and either
//! ends (the server ended by itself, with nothing mounted) or starts the next one and sends it all.
//! A server that dies again and again is started with growing pauses.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fuse::{Capabilities, Negotiated, Transport};

use super::kind;
use super::wire::{Channel, DESCRIPTORS_MAX, Reader, Writer};
use crate::layers::Directories;

/// How long a server must live to count as one that works.
const LIVES_AT_LEAST: Duration = Duration::from_secs(5);
/// The pause after the second early death in a row, doubled with each further one.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// What is kept of a mount.
#[derive(Debug, Default)]
struct Entry {
    descriptors: Vec<OwnedFd>,
    /// The server's own words; none until it has sent all descriptors.
    words: Option<Vec<u8>>,
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
        // Its locks and its reads of the devices go with the process.
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
        channel.send(words, &[])?;
    }
    channel.send(&[kind::ALL], &[])
}

/// Takes what the server gives, until it ends.
fn take(channel: &Channel, entries: &mut BTreeMap<u64, Entry>) -> io::Result<()> {
    while let Some(packet) = channel.receive()? {
        let Some((kind, mut reader)) = Reader::new(&packet.bytes) else { continue };
        let Some(id) = reader.number() else { continue };
        match kind {
            kind::KEEP => {
                let entry: &mut Entry = entries.entry(id).or_default();
                entry.descriptors.extend(packet.descriptors);
            }
            kind::KEPT => entries.entry(id).or_default().words = Some(packet.bytes),
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
    pub(super) directories: Vec<OwnedFd>,
}

/// The keeper as the server knows it.
#[derive(Debug, Clone)]
pub(super) struct Keeper(Arc<Channel>);

impl Keeper {
    /// Receives what an earlier server has given to keep.
    pub(super) fn connect(socket: OwnedFd) -> io::Result<(Self, Vec<Kept>)> {
        let channel = Channel::new(socket);
        let mut kept = Vec::new();
        let mut descriptors = Vec::new();
        loop {
            let mut packet = channel.receive()?.ok_or(io::ErrorKind::UnexpectedEof)?;
            match packet.bytes[0] {
                kind::ALL => break,
                kind::KEEP => descriptors.append(&mut packet.descriptors),
                kind::KEPT => {
                    let descriptors = std::mem::take(&mut descriptors);
                    let mount = read_kept(&packet.bytes, descriptors);
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

    /// Gives a mount to keep. That the keeper is gone is told once and harms nobody until the server
    /// dies too.
    #[allow(clippy::too_many_arguments, reason = "all that makes a mount")]
    pub(super) fn keep(
        &self,
        id: u64,
        text: &[u8],
        mountpoint: &Path,
        number: u32,
        agreed: &Negotiated,
        device: &OwnedFd,
        directories: &Directories,
    ) {
        let words = Writer::new(kind::KEPT)
            .number(id)
            .bytes(text)
            .bytes(mountpoint.as_os_str().as_bytes())
            .number(number.into())
            .number(agreed.minor.into())
            .number(agreed.capabilities.bits())
            .number(agreed.max_write_bytes.into())
            .number(agreed.max_readahead_bytes.into())
            .done();
        let mut all = vec![device.as_fd()];
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

    /// A mount has ended.
    pub(super) fn forget(&self, id: u64) {
        // A keeper that is gone keeps nothing.
        let _ = self.0.send(&Writer::new(kind::ENDED).number(id).done(), &[]);
    }
}

fn read_kept(words: &[u8], descriptors: Vec<OwnedFd>) -> Option<Kept> {
    let (_, mut reader) = Reader::new(words)?;
    let id = reader.number()?;
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
    let directories = descriptors.collect();
    Some(Kept { id, text, mountpoint, number, agreed, device, directories })
}
