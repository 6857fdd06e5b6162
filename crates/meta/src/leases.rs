//! The lease table: which session holds which rights over which inode, and their recall.
//!
//! A state machine without I/O; the rules are in `docs/protocol.md`. The service asks
//! [`Leases::clear`] whether a call may be executed now. If other sessions hold conflicting rights,
//! the table queues recalls in its outbox, *bars* the inodes and returns [`Clearance::Wait`]. When
//! the last answer has come, or its session has ended, the table lists the call as ready, and the
//! service asks again. [`Leases::done`] lifts the bars.
//!
//! Why no waits form a circle: a recall of READ waits for local reads only. A recall of WRITE or
//! SIZE waits for commits. A commit waits for recalls of READ, or of a SIZE right if the commits of
//! its holder wait for recalls of READ only; SOLE is like WRITE. Therefore READ is always recalled
//! by a message of its own, never together with WRITE or SIZE. Acquirers wait for *earlier* bars
//! only.
//!
//! Most inodes have one holder, and few are being recalled at any time. So holders are stored in
//! place, bars and recalls in separate maps.

mod ask;
mod grant;
mod resume;
mod sole;
#[cfg(test)]
mod tests;
mod unheard;

use protocol::client::Name;
use protocol::lease::Recall;
use protocol::{InodeId, LeaseStamp, Rights, SessionId};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// When more sessions than this hold READ over a directory, a change recalls their rights, so that
/// they need not be notified of every later change. Otherwise it names the changed entry to each.
pub const INVALIDATE_HOLDERS_MAX: usize = 16;

/// Number of inodes over which a session may hold rights before the oldest are recalled.
pub const HOLDINGS_PER_SESSION: usize = 1 << 16;

/// Most simultaneous recalls of a session's oldest rights.
const EVICTIONS_MAX: usize = 64;

/// Number of oldest holdings that are checked to find one that can be recalled.
const EVICTION_LOOK_MAX: usize = 16;

/// A call that the service is processing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// A recall or invalidation whose answer is awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AskId(pub u64);

/// A condition that sessions must meet before a call may be executed. It concerns the other
/// sessions, except for [`Demand::ReportOpen`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Demand {
    /// They hold none of these rights over the inode.
    Give(InodeId, Rights),
    /// They have forgotten these entries of the directory, and its attributes.
    Forget(InodeId, Vec<Name>),
    /// The call's own session holds no rights over the inode except OPEN: its answers to the recall
    /// report whether it has the inode open.
    ReportOpen(InodeId),
}

impl Demand {
    fn inode(&self) -> InodeId {
        match self {
            Demand::Give(inode, _) | Demand::Forget(inode, _) | Demand::ReportOpen(inode) => *inode,
        }
    }

    /// Returns the rights that no other session gets until the call is executed.
    fn bars(&self) -> Rights {
        match self {
            Demand::Give(_, rights) => *rights,
            Demand::Forget(..) => Rights::READ,
            Demand::ReportOpen(_) => Rights::NONE,
        }
    }
}

/// Whether a call may be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clearance {
    /// It may be executed now.
    Clear,
    /// It must wait until [`Leases::take_ready`] returns it.
    Wait,
}

/// A message for a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Identifies the awaited answer for [`Leases::answered`].
    pub id: AskId,
    /// The receiving session.
    pub session: SessionId,
    /// The request.
    pub what: Asked,
}

/// A request to a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// To give rights back.
    Recall(Recall),
    /// To forget entries of a directory.
    Forget {
        /// The directory.
        inode: InodeId,
        /// The entries.
        names: Vec<Name>,
        /// See [`protocol::lease::Grant::stamp`].
        stamp: LeaseStamp,
    },
}

#[derive(Clone, Copy, Debug)]
struct Holder {
    session: SessionId,
    rights: Rights,
    /// Stamp of the newest grant.
    stamp: LeaseStamp,
}

type Holders = SmallVec<[Holder; 1]>;

/// Until `call` is done, only `session` is granted `rights`.
#[derive(Clone, Copy, Debug)]
struct Bar {
    call: CallId,
    session: SessionId,
    rights: Rights,
    order: u64,
}

/// The asks and waiting calls of an inode.
#[derive(Debug, Default)]
struct Busy {
    bars: Vec<Bar>,
    asks: Vec<AskId>,
    /// Calls that wait until bars are lifted.
    acquirers: Vec<CallId>,
}

/// An unanswered [`Ask`].
#[derive(Debug)]
struct Open {
    session: SessionId,
    inode: InodeId,
    /// The rights that the answer gives back; none for a [`Asked::Forget`].
    rights: Rights,
    is_forget: bool,
    stamp: LeaseStamp,
    /// The ask only makes room.
    is_eviction: bool,
    /// Calls that wait for it.
    calls: Vec<CallId>,
}

/// A call that has to wait.
#[derive(Debug)]
struct Waiting {
    order: u64,
    inodes: SmallVec<[InodeId; 4]>,
    /// Number of unanswered asks that it waits for.
    missing: usize,
    /// Entries that sessions had to forget for it.
    forgotten: Vec<(SessionId, InodeId, Name)>,
}

#[derive(Debug, Default)]
struct Held {
    /// The session's inodes by the stamp of the newest grant.
    by_stamp: BTreeMap<LeaseStamp, InodeId>,
    /// Number of unanswered recalls that make room.
    evictions: usize,
    /// While the session reports its rights after a resume: the inodes so far.
    reclaiming: Option<HashSet<InodeId>>,
}

/// The table.
#[derive(Debug)]
pub struct Leases {
    holdings_max: usize,
    stamp: u64,
    next_ask: u64,
    next_order: u64,
    holders: HashMap<InodeId, Holders>,
    sessions: HashMap<SessionId, Held>,
    /// The holder of SOLE, by inode.
    soles: HashMap<InodeId, SessionId>,
    unheard: unheard::Unheard,
    busy: HashMap<InodeId, Busy>,
    asks: HashMap<AskId, Open>,
    waiting: HashMap<CallId, Waiting>,
    outbox: Vec<Ask>,
    ready: Vec<CallId>,
}

impl Leases {
    /// Creates an empty table. `first_stamp` must be later than all stamps that an earlier life of
    /// the service gave (nanoseconds since 1970 will do).
    pub fn new(first_stamp: u64, holdings_max: usize) -> Leases {
        Leases {
            holdings_max,
            stamp: first_stamp,
            next_ask: 0,
            next_order: 0,
            holders: HashMap::new(),
            sessions: HashMap::new(),
            soles: HashMap::new(),
            unheard: unheard::Unheard::default(),
            busy: HashMap::new(),
            asks: HashMap::new(),
            waiting: HashMap::new(),
            outbox: Vec::new(),
            ready: Vec::new(),
        }
    }

    /// Returns the messages to send, in this order. Each must be answered through
    /// [`Leases::answered`], or its session ended.
    pub fn take_outbox(&mut self) -> Vec<Ask> {
        std::mem::take(&mut self.outbox)
    }

    /// Returns the calls that should ask for clearance again.
    pub fn take_ready(&mut self) -> Vec<CallId> {
        std::mem::take(&mut self.ready)
    }

    /// Returns the rights of a session over an inode.
    pub fn rights(&self, session: SessionId, inode: InodeId) -> Rights {
        self.holders.get(&inode).map_or(Rights::NONE, |holders| {
            holders.iter().find(|h| h.session == session).map_or(Rights::NONE, |h| h.rights)
        })
    }

    /// Returns the sessions that are known to have an inode open.
    pub fn openers(&self, inode: InodeId) -> Vec<SessionId> {
        let holders = self.holders.get(&inode).map_or(&[][..], |holders| holders.as_slice());
        let open = holders.iter().filter(|h| h.rights.contains(Rights::OPEN));
        let open = open.map(|h| h.session).chain(self.unheard.openers(inode));
        open.collect::<BTreeSet<SessionId>>().into_iter().collect()
    }

    /// Returns the number of inodes over which sessions hold rights.
    pub fn len(&self) -> usize {
        self.holders.len()
    }

    /// Returns whether no session holds rights.
    pub fn is_empty(&self) -> bool {
        self.holders.is_empty()
    }

    fn next_stamp(&mut self) -> LeaseStamp {
        self.stamp += 1;
        LeaseStamp(self.stamp)
    }
}
