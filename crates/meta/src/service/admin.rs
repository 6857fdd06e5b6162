//! Calls of an administrator's tool.

use super::shared::Shared;
use crate::tree::Context;
use protocol::admin::{Answer, Call};
use protocol::client::{self, Entry};
use protocol::space::SessionInfo;
use protocol::{DeviceId, FileKind, InodeId, SessionId, Timestamp};
use rpc::{Acceptor, Admin, Authenticated, Connection, Handler, Reply};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

/// Most paths of one answer.
const PATHS_MAX: usize = 4096;

/// Most bytes of paths in one answer: they must fit a frame.
const PATH_BYTES_MAX: usize = 512 << 10;

/// Entries listed at a time.
const LIST_MAX: u32 = 256;

/// Files that the walk checks before it lets calls run.
const FILES_PER_TURN: usize = 64;

type AdminReply = Reply<Acceptor<Admin>>;

struct AdminPeer {
    shared: Rc<Shared>,
    connection: Rc<RefCell<Option<Connection<Acceptor<Admin>>>>>,
}

impl Handler<Acceptor<Admin>> for AdminPeer {
    fn called(&self, call: Call, reply: AdminReply) {
        match call {
            Call::Status => send(reply, &self.shared.status()),
            Call::FilesHit { count_max } => {
                let shared = Rc::clone(&self.shared);
                let connection = Rc::clone(&self.connection);
                reactor::spawn(async move {
                    let has_left = || connection.borrow().is_none();
                    if let Some(answer) = shared.files_hit(count_max as usize, has_left).await {
                        send(reply, &answer);
                    }
                });
            }
            Call::Shutdown => self.shutdown(reply),
            Call::Check => {
                let shared = Rc::clone(&self.shared);
                reactor::spawn(async move { send(reply, &shared.check().await) });
            }
        }
    }

    fn closed(&self, _: &str) {
        self.connection.borrow_mut().take();
    }
}

fn send(reply: AdminReply, answer: &Answer) {
    if let Err((_, error)) = reply.send(answer) {
        tracing::warn!(%error, "an administrator's answer cannot be sent");
    }
}

impl AdminPeer {
    fn shutdown(&self, reply: AdminReply) {
        tracing::info!("an administrator ends the metadata service");
        let connection = self.connection.borrow().clone();
        let shared = Rc::clone(&self.shared);
        reactor::spawn(async move {
            let answer = match shared.sync_now().await {
                Ok(()) => Answer::Done,
                Err(error) => Answer::Refused(error.to_string()),
            };
            send(reply, &answer);
            if let Some(connection) = connection {
                connection.flushed().await;
            }
            shared.want_end(Ok(()));
        });
    }
}

impl Shared {
    /// Serves an authenticated tool.
    pub(super) fn serve_admin(self: &Rc<Self>, authenticated: Authenticated) {
        let connection = Rc::new(RefCell::new(None));
        let peer = AdminPeer { shared: Rc::clone(self), connection: Rc::clone(&connection) };
        *connection.borrow_mut() = Some(authenticated.start::<Admin>(Rc::new(peer)));
        self.remember(Rc::new(move |reason| {
            let connection = connection.borrow().clone();
            super::client::close_unless_empty(connection.as_ref(), reason)
        }));
    }

    fn status(&self) -> Answer {
        let now = reactor::time::now();
        let sessions = self.sessions.borrow().all();
        let info = |session: Rc<crate::sessions::Session>| SessionInfo {
            session: session.id,
            node: session.node.clone(),
            silent_ms: now.since(session.last_heartbeat.get()).as_millis() as u64,
        };
        let core = self.core.borrow();
        Answer::Status {
            devices: core.devices(),
            plain: self.agents.plain(),
            counts: self.agents.counts(),
            sessions: sessions.into_iter().map(info).collect(),
            pool_use: core.pool_use(),
            meta: {
                drop(core);
                self.counts()
            },
        }
    }

    /// Walks the tree for files with data on devices that are offline, for as long as a heartbeat: a
    /// tool waits longer, and has at least what was found. Returns nothing if the tool has left:
    /// tools that ask again and again must not make walks pile up.
    async fn files_hit(&self, count_max: usize, has_left: impl Fn() -> bool) -> Option<Answer> {
        let deadline = reactor::time::now() + self.times.heartbeat;
        let devices = self.core.borrow().devices();
        let offline: BTreeSet<DeviceId> =
            devices.iter().filter(|device| !device.online).map(|device| device.device).collect();
        let mut walk = Walk { offline, found: Vec::new(), bytes: 0 };
        if walk.offline.is_empty() {
            return Some(Answer::Paths(walk.found));
        }
        let count_max = count_max.min(PATHS_MAX);
        let mut todo: Vec<(InodeId, Vec<u8>)> = vec![(InodeId::ROOT, Vec::new())];
        let mut looked_at = 0;
        while let Some((directory, path)) = todo.pop() {
            let mut after = 0;
            loop {
                let (entries, end) = self.list(directory, after);
                for entry in &entries {
                    let path = join(&path, &entry.name);
                    match entry.attr.kind {
                        FileKind::Directory => todo.push((entry.attr.inode, path)),
                        FileKind::File => self.look_at(&mut walk, entry, &path),
                        _ => {}
                    }
                    if walk.found.len() >= count_max || walk.bytes > PATH_BYTES_MAX {
                        return Some(Answer::Paths(walk.found));
                    }
                    looked_at += 1;
                    if looked_at % FILES_PER_TURN == 0 {
                        reactor::yield_now().await;
                        if has_left() {
                            return None;
                        }
                        if reactor::time::now() >= deadline {
                            return Some(Answer::PathsSoFar(walk.found));
                        }
                    }
                }
                match entries.last() {
                    Some(last) if !end => after = last.cookie,
                    _ => break,
                }
            }
        }
        Some(Answer::Paths(walk.found))
    }

    fn ask_core(&self, call: &client::Call) -> Option<client::Answer> {
        let context = Context {
            session: SessionId(0),
            now: Timestamp(reactor::time::system_time() as i64),
            openers: &|_| Vec::new(),
        };
        self.core.borrow_mut().execute(&context, call).ok().map(|outcome| outcome.answer)
    }

    fn list(&self, inode: InodeId, after: u64) -> (Vec<Entry>, bool) {
        let call =
            client::Call::Read(client::ReadCall::ReadDir { inode, after, count_max: LIST_MAX });
        match self.ask_core(&call) {
            Some(client::Answer::Entries { entries, end }) => (entries, end),
            _ => (Vec::new(), true),
        }
    }

    fn look_at(&self, walk: &mut Walk, entry: &Entry, path: &[u8]) {
        let mut hit: BTreeSet<DeviceId> = BTreeSet::new();
        let mut offset = 0;
        while offset < entry.attr.size {
            let (inode, length) = (entry.attr.inode, entry.attr.size - offset);
            let call = client::Call::Read(client::ReadCall::ReadExtents { inode, offset, length });
            let Some(client::Answer::Extents { extents, covered_to, .. }) = self.ask_core(&call)
            else {
                return;
            };
            let devices = extents.0.iter().map(|extent| extent.place.allocation.device);
            hit.extend(devices.filter(|device| walk.offline.contains(device)));
            if covered_to <= offset {
                break;
            }
            offset = covered_to;
        }
        for device in hit {
            walk.bytes += path.len() + 8;
            walk.found.push((path.to_owned(), device));
        }
    }
}

/// A walk through the tree.
struct Walk {
    offline: BTreeSet<DeviceId>,
    found: Vec<(Vec<u8>, DeviceId)>,
    bytes: usize,
}

fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = directory.to_vec();
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}
