//! Reads all data of a running pool, as a session of its own, and compares it with its checksums.
//!
//! The session reads as a mount does, so it finds what a mount's read would find. It walks the
//! tree, so it leaves out files without a name. For each file it recalls the rights of writers for
//! a moment.

use crate::deploy::admin::Access;
use crate::deploy::scrub_record::Tally;
use ::meta::check::data::Wrongness;
use ::meta::check::{Area, Finding};
use anyhow::bail;
use client::{Client, ClientConfig, Scrubbed, SessionConfig};
use protocol::client::Entry;
use protocol::times::Times;
use protocol::{DeviceId, Errno, FileKind, InodeId};
use reactor::JoinHandle;
use reactor::time::{Instant, now, sleep};
use rpc::Credential;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;
use tls::Holder;

/// The name of the session in the pool.
const NAME: &str = "scrub";

/// Number of files to read at once.
const FILES_AT_ONCE: usize = 8;

/// Bytes of a file to read at once, without a limited rate and with one.
const PART_BYTES: u64 = 8 << 20;
const PACED_PART_BYTES: u64 = 1 << 20;

/// Interval between calls of the watcher.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How long the end of the session may take.
const END_WITHIN: Duration = Duration::from_secs(2);

/// Number of successive calls that may time out.
const TIMEOUTS_MAX: u32 = 3;

/// The argument of a watcher's call.
pub(crate) struct Look {
    pub(crate) tally: Tally,
    /// Bytes of live data in the pool.
    pub(crate) live_bytes: u64,
    /// Findings since the last call.
    pub(crate) found: Vec<Finding>,
}

/// The reads in progress.
struct Reader {
    client: Rc<Client>,
    /// Set to stop reading.
    is_over: Cell<bool>,
    part_bytes: u64,
    pace: Pace,
    tally: Cell<Tally>,
    found: RefCell<Vec<Finding>>,
    /// Blocks of files in earlier findings.
    named: RefCell<BTreeSet<(InodeId, DeviceId, u64)>>,
    /// Files with several names that were started.
    begun: RefCell<BTreeSet<InodeId>>,
    timeouts: Cell<u32>,
}

/// Limits the rate.
struct Pace {
    rate: Option<u64>,
    next: Cell<Instant>,
}

impl Pace {
    /// Waits until this number of further bytes is due.
    async fn wait(&self, bytes: u64) {
        let Some(rate) = self.rate else { return };
        let due = self.next.get().max(now()) + Duration::from_secs_f64(bytes as f64 / rate as f64);
        self.next.set(due);
        sleep(due - now()).await;
    }
}

/// Reads all data of a pool, at most `rate` bytes per second. Calls `watch` twice a second and at
/// the end; it returns whether to continue.
///
/// # Errors
/// The reason why not all data was read.
pub(crate) async fn read_all(
    access: &Access,
    plain_data: bool,
    rate: Option<u64>,
    mut watch: impl FnMut(Look) -> anyhow::Result<()>,
) -> anyhow::Result<Tally> {
    let client = Client::start(config(access, plain_data)?).await.map_err(anyhow::Error::msg)?;
    let pool = client.pool_use().await.map_err(|errno| anyhow::anyhow!("no pool: {errno}"))?;
    let live_bytes = pool.total_bytes.saturating_sub(pool.free_bytes);
    let reader = Rc::new(Reader {
        client: Rc::clone(&client),
        is_over: Cell::new(false),
        part_bytes: if rate.is_some() { PACED_PART_BYTES } else { PART_BYTES },
        pace: Pace { rate, next: Cell::new(now()) },
        tally: Cell::default(),
        found: RefCell::default(),
        named: RefCell::default(),
        begun: RefCell::default(),
        timeouts: Cell::new(0),
    });
    let mut walk = reactor::spawn(Rc::clone(&reader).walk());
    let done = loop {
        let ended = match reactor::race(&mut walk, sleep(LOOK_EVERY)).await {
            reactor::Either::First(ended) => Some(ended),
            reactor::Either::Second(()) => None,
        };
        let (tally, found) = (reader.tally.get(), reader.found.take());
        match (watch(Look { tally, live_bytes, found }), ended) {
            (Err(error), _) | (Ok(()), Some(Ok(Err(error)))) => break Err(error),
            (Ok(()), None) => {}
            (Ok(()), Some(Ok(Ok(())))) => break Ok(()),
            (Ok(()), Some(Err(_))) => break Err(anyhow::anyhow!("reading was aborted")),
        }
    };
    walk.abort();
    reader.is_over.set(true);
    let tally = reader.tally.get();
    // The session has written nothing that could fail, and a dead service does not answer.
    let _ = reactor::time::timeout(END_WITHIN, client.end()).await;
    done.map(|()| tally)
}

fn config(access: &Access, plain_data: bool) -> anyhow::Result<ClientConfig> {
    let key = access.job_key()?.of(&Holder::Node(NAME.into()))?;
    Ok(ClientConfig {
        session: SessionConfig {
            meta: access.address,
            credential: Credential::Tls(key),
            node: NAME.into(),
            times: Times::default(),
            sockets: access.sockets(),
        },
        local: Box::new(|_, _, _| None),
        plain_data,
        changes: None,
        inline_bytes: 0,
        checksum: true,
    })
}

impl Reader {
    fn count(&self, change: impl FnOnce(&mut Tally)) {
        let mut tally = self.tally.get();
        change(&mut tally);
        self.tally.set(tally);
    }

    fn find(&self, area: Area, (inode, path): (InodeId, &str), what: String) {
        let finding = Finding::general(area, what);
        let path = Some(path.to_owned());
        self.found.borrow_mut().push(Finding { inode: Some(inode), path, ..finding });
    }

    /// Walks all directories, and reads a few files at once.
    async fn walk(self: Rc<Self>) -> anyhow::Result<()> {
        let mut todo = vec![(InodeId::ROOT, String::new())];
        let mut running = VecDeque::new();
        while let Some((directory, path)) = todo.pop() {
            let mut after = 0;
            loop {
                let listing = match self.client.list(directory, after).await {
                    Ok(listing) => listing,
                    Err(Errno::ENOENT | Errno::ESTALE) => break,
                    Err(errno) => {
                        self.failed((directory, &path), errno, "the directory cannot be listed")?;
                        break;
                    }
                };
                for entry in &listing.entries {
                    let path = format!("{path}/{}", String::from_utf8_lossy(&entry.name));
                    match entry.attr.kind {
                        FileKind::Directory => todo.push((entry.attr.inode, path)),
                        FileKind::File if self.is_due(entry) => {
                            let reader = Rc::clone(&self);
                            let (id, size) = (entry.attr.inode, entry.attr.size);
                            running.push_back(reactor::spawn(reader.read_file(id, size, path)));
                        }
                        _ => {}
                    }
                    while running.len() >= FILES_AT_ONCE {
                        next(&mut running).await?;
                    }
                }
                match listing.entries.last() {
                    Some(last) if !listing.end => after = last.cookie,
                    _ => break,
                }
            }
        }
        while !running.is_empty() {
            next(&mut running).await?;
        }
        Ok(())
    }

    /// Returns whether a file has data, and was not started under another name.
    fn is_due(&self, entry: &Entry) -> bool {
        let attr = &entry.attr;
        attr.allocated_bytes > 0 && (attr.nlink == 1 || self.begun.borrow_mut().insert(attr.inode))
    }

    async fn read_file(self: Rc<Self>, id: InodeId, size: u64, path: String) -> anyhow::Result<()> {
        let mut at = 0;
        while at < size && !self.is_over.get() {
            match self.client.scrub(id, at..size, self.part_bytes).await {
                Ok(part) => {
                    self.timeouts.set(0);
                    self.note((id, &path), &part);
                    self.pace.wait(part.read_bytes).await;
                    // A part has at least one byte.
                    at = part.end.max(at + 1);
                }
                // The file was removed meanwhile.
                Err(Errno::ENOENT | Errno::ESTALE) => break,
                Err(Errno::EIO) => {
                    let what = "its inline data or its records are damaged: reads fail with EIO";
                    self.find(Area::Damage, (id, &path), what.into());
                    break;
                }
                Err(errno) => {
                    self.failed((id, &path), errno, "it cannot be read")?;
                    break;
                }
            }
        }
        self.client.forget(id, 0);
        self.count(|tally| tally.files += 1);
        Ok(())
    }

    /// Records a failed call.
    fn failed(&self, of: (InodeId, &str), errno: Errno, what: &str) -> anyhow::Result<()> {
        if errno == Errno::ETIMEDOUT {
            self.timeouts.set(self.timeouts.get() + 1);
            if self.timeouts.get() >= TIMEOUTS_MAX {
                bail!("the metadata service does not answer");
            }
        }
        self.find(Area::Unread, of, format!("{what}: {errno}"));
        Ok(())
    }

    fn note(&self, (id, path): (InodeId, &str), part: &Scrubbed) {
        self.count(|tally| {
            tally.read_bytes += part.read_bytes;
            tally.compared_blocks += part.compared;
            tally.unsummed_blocks += part.unsummed;
            tally.repaired_blocks += part.repaired;
        });
        for wrong in &part.wrong {
            if !self.named.borrow_mut().insert((id, wrong.device, wrong.block)) {
                continue;
            }
            let block = (wrong.device, wrong.block);
            let what = Wrongness::Sum.of_file(block, &wrong.node, wrong.bytes);
            tracing::error!(path, device = %wrong.device, block = wrong.block, node = wrong.node, "{what}");
            self.find(Area::Damage, (id, path), what);
            if let Some(finding) = self.found.borrow_mut().last_mut() {
                finding.block = Some(block);
            }
        }
        for (device, (from, to)) in &part.lost {
            let what = format!("bytes {from} to {to} were lost with the power of {device}");
            self.find(Area::Damage, (id, path), what);
        }
        for (device, errno) in &part.unread {
            let what = format!("{device} cannot be read ({errno}): is its node alive?");
            self.find(Area::Unread, (id, path), what);
        }
    }
}

/// Waits for the file that was started first.
async fn next(running: &mut VecDeque<JoinHandle<anyhow::Result<()>>>) -> anyhow::Result<()> {
    match running.pop_front() {
        Some(first) => first.await.unwrap_or_else(|_| bail!("reading a file was aborted")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: several parallel reads together keep the rate, and idle time does not allow a higher
    /// rate later.
    #[test]
    fn a_rate_is_kept() {
        let mut simulation = reactor::sim::Simulation::new(1);
        let paced = async {
            let pace = Rc::new(Pace { rate: Some(1 << 20), next: Cell::new(now()) });
            let read = |parts: u32| {
                let pace = Rc::clone(&pace);
                reactor::spawn(async move {
                    for _ in 0..parts {
                        pace.wait(1 << 20).await;
                    }
                })
            };
            let begun = now();
            let (one, other) = (read(4), read(6));
            one.await.unwrap();
            other.await.unwrap();
            let all = now() - begun;
            sleep(Duration::from_mins(1)).await;
            let begun = now();
            read(3).await.unwrap();
            (all, now() - begun)
        };
        let (all, after) = simulation.run(paced).unwrap();
        let near = |took: Duration, seconds: f64| (took.as_secs_f64() - seconds).abs() < 0.1;
        assert!(near(all, 10.0), "10 MiB at 1 MiB/s took {all:?}");
        assert!(near(after, 3.0), "3 MiB at 1 MiB/s took {after:?}");
    }
}
