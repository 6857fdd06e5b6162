//! The lease table: which session holds which rights over which inode, and their recall.
//!
//! A state machine without I/O; the rules are in `docs/protocol.md`. The service asks
//! [`Leases::clear`] whether a call may be executed now. If others hold what conflicts, the table
//! queues recalls in its outbox, *bars* the inodes and says [`Clearance::Wait`]; when the last of
//! the answers has come (or its session has ended) the call is in the list of ready calls and asks
//! again. [`Leases::done`] lifts the bars.
//!
//! Why nothing waits in a circle: a recall of READ waits for local reads only. A recall of WRITE or
//! SIZE waits for commits, and a commit waits for recalls of READ, or of a SIZE right whose holder's
//! own commits wait for recalls of READ only; SOLE is as WRITE. Therefore READ is always recalled by a message of its
//! own, never together with WRITE or SIZE. Acquirers wait for *earlier* bars only.
//!
//! Most inodes have one holder, and few are being recalled at any time: holders are kept in place,
//! bars and recalls in maps of their own.

mod ask;
mod grant;
mod resume;
mod sole;
#[cfg(test)]
mod tests;

use protocol::client::Name;
use protocol::lease::Recall;
use protocol::{InodeId, LeaseStamp, Rights, SessionId};
use smallvec::SmallVec;
use std::collections::{BTreeMap, HashMap, HashSet};

/// When more sessions than this hold READ over a directory, a change of it recalls them instead of
/// naming the changed entry to each: they would else be told of every change.
pub const INVALIDATE_HOLDERS_MAX: usize = 16;

/// Inodes over which a session may hold rights before the oldest are recalled.
pub const HOLDINGS_PER_SESSION: usize = 1 << 16;

/// Recalls of a session's oldest rights that are under way at once.
const EVICTIONS_MAX: usize = 64;

/// Oldest holdings that are looked at to find one that can be recalled.
const EVICTION_LOOK_MAX: usize = 16;

/// A call that is being worked out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// A recall or invalidation whose answer is awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AskId(pub u64);

/// What a call needs of sessions, other ones but for [`Demand::Tell`], before it may be executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Demand {
    /// They hold none of these rights over the inode.
    Give(InodeId, Rights),
    /// They have forgotten these entries of the directory, and its attributes.
    Forget(InodeId, Vec<Name>),
    /// The call's own session holds no rights over the inode but OPEN: by the answers to their recall it
    /// has said whether it has it open.
    Tell(InodeId),
}

impl Demand {
    fn inode(&self) -> InodeId {
        match self {
            Demand::Give(inode, _) | Demand::Forget(inode, _) | Demand::Tell(inode) => *inode,
        }
    }

    /// What nobody else is granted until the call is executed.
    fn bars(&self) -> Rights {
        match self {
            Demand::Give(_, rights) => *rights,
            Demand::Forget(..) => Rights::READ,
            Demand::Tell(_) => Rights::NONE,
        }
    }
}

/// Whether a call may be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clearance {
    /// Now, without waiting.
    Clear,
    /// Not before the call is in [`Leases::take_ready`].
    Wait,
}

/// A message for a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Which answer it awaits, for [`Leases::answered`].
    pub id: AskId,
    /// To whom.
    pub session: SessionId,
    /// What is asked.
    pub what: Asked,
}

/// What a session is asked.
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
    /// Of the newest grant.
    stamp: LeaseStamp,
}

type Holders = SmallVec<[Holder; 1]>;

/// Nobody but `session` is granted `rights` until `call` is done.
#[derive(Clone, Copy, Debug)]
struct Bar {
    call: CallId,
    session: SessionId,
    rights: Rights,
    order: u64,
}

/// What is going on at an inode.
#[derive(Debug, Default)]
struct Busy {
    bars: Vec<Bar>,
    asks: Vec<AskId>,
    /// Calls that wait for bars to be lifted.
    acquirers: Vec<CallId>,
}

/// An unanswered [`Ask`].
#[derive(Debug)]
struct Open {
    session: SessionId,
    inode: InodeId,
    /// What goes with the answer; nothing for a [`Asked::Forget`].
    rights: Rights,
    is_forget: bool,
    stamp: LeaseStamp,
    /// Asked to make room.
    is_eviction: bool,
    /// Who waits for it.
    calls: Vec<CallId>,
}

/// A call that was told to wait.
#[derive(Debug)]
struct Waiting {
    order: u64,
    inodes: SmallVec<[InodeId; 4]>,
    /// Unanswered asks that it waits for.
    missing: usize,
    /// What sessions were asked to forget for it.
    forgotten: Vec<(SessionId, InodeId, Name)>,
}

#[derive(Debug, Default)]
struct Held {
    /// The session's inodes by the stamp of the newest grant.
    by_stamp: BTreeMap<LeaseStamp, InodeId>,
    /// Recalls to make room that are not answered.
    evictions: usize,
    /// While the session says what it holds after a resume: the inodes so far.
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
    /// Who holds SOLE, by inode.
    soles: HashMap<InodeId, SessionId>,
    busy: HashMap<InodeId, Busy>,
    asks: HashMap<AskId, Open>,
    waiting: HashMap<CallId, Waiting>,
    outbox: Vec<Ask>,
    ready: Vec<CallId>,
}

impl Leases {
    /// An empty table. `first_stamp` must be later than all stamps that an earlier life of the
    /// service gave (nanoseconds since 1970 will do).
    pub fn new(first_stamp: u64, holdings_max: usize) -> Leases {
        Leases {
            holdings_max,
            stamp: first_stamp,
            next_ask: 0,
            next_order: 0,
            holders: HashMap::new(),
            sessions: HashMap::new(),
            soles: HashMap::new(),
            busy: HashMap::new(),
            asks: HashMap::new(),
            waiting: HashMap::new(),
            outbox: Vec::new(),
            ready: Vec::new(),
        }
    }

    /// What has to be sent, in this order; each must be answered by [`Leases::answered`], or its
    /// session ended.
    pub fn take_outbox(&mut self) -> Vec<Ask> {
        std::mem::take(&mut self.outbox)
    }

    /// Calls that should ask for clearance again.
    pub fn take_ready(&mut self) -> Vec<CallId> {
        std::mem::take(&mut self.ready)
    }

    /// What a session holds over an inode.
    pub fn rights(&self, session: SessionId, inode: InodeId) -> Rights {
        self.holders.get(&inode).map_or(Rights::NONE, |holders| {
            holders.iter().find(|h| h.session == session).map_or(Rights::NONE, |h| h.rights)
        })
    }

    /// The sessions that are known to have an inode open.
    pub fn openers(&self, inode: InodeId) -> Vec<SessionId> {
        let holders = self.holders.get(&inode).map_or(&[][..], |holders| holders.as_slice());
        let open = holders.iter().filter(|h| h.rights.contains(Rights::OPEN));
        open.map(|h| h.session).collect()
    }

    /// Inodes over which anybody holds rights.
    pub fn len(&self) -> usize {
        self.holders.len()
    }

    /// Whether nobody holds anything.
    pub fn is_empty(&self) -> bool {
        self.holders.is_empty()
    }

    fn next_stamp(&mut self) -> LeaseStamp {
        self.stamp += 1;
        LeaseStamp(self.stamp)
    }
}
