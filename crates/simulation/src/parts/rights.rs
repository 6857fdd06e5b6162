//! The table of rights in the metadata service (`meta::leases`), with clients whose messages are on
//! their way for as long as the seed wants.
//!
//! Each client takes grants and recalls in the order in which they were sent, and its answers and
//! returns arrive in order. Rules R2, R4, R5, R8 and R10 of docs/protocol.md.

use crate::random::{Random, mix};
use meta::leases::{Ask, Asked, CallId, Clearance, Demand, HOLDINGS_PER_SESSION, Leases};
use protocol::lease::{Grant, Return};
use protocol::{InodeId, LeaseStamp, Rights, SessionId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

const CLIENTS: u64 = 3;
const INODES: u64 = 2;
const STEPS: (u64, u64) = (60, 200);
/// The rights of clients here, apart from OPEN.
const EACH: [Rights; 3] = [Rights::READ, Rights::WRITE, Rights::SIZE];

/// A message of the service.
enum Down {
    Grant(Grant),
    Ask(Ask),
}

/// A message of a client.
enum Up {
    Answered(meta::leases::AskId, Rights),
    Back(Return),
}

#[derive(Default)]
struct Client {
    down: VecDeque<Down>,
    up: VecDeque<Up>,
    /// What it believes to hold.
    belief: BTreeMap<InodeId, Rights>,
    /// Files that it has open, reported or not.
    open: BTreeSet<InodeId>,
    newest: LeaseStamp,
}

struct Call {
    session: SessionId,
    demands: Vec<Demand>,
    wants: Option<(InodeId, Rights)>,
}

struct World {
    leases: Leases,
    random: Random,
    clients: BTreeMap<SessionId, Client>,
    calls: BTreeMap<CallId, Call>,
    next_call: u64,
    trace: u64,
}

/// Runs a seed; returns its trace and what is wrong. It panics where a right is wrong.
pub(super) fn run(seed: u64) -> (u64, Vec<String>) {
    let clients = (1..=CLIENTS).map(|number| (SessionId(number), Client::default()));
    let mut world = World {
        leases: Leases::new(1000, HOLDINGS_PER_SESSION),
        random: Random::new(seed ^ 0x0072_6967_6874),
        clients: clients.collect(),
        calls: BTreeMap::new(),
        next_call: 0,
        trace: seed,
    };
    for _ in 0..world.random.between(STEPS.0, STEPS.1) {
        world.step();
    }
    world.settle();
    (world.trace, Vec::new())
}

impl World {
    fn step(&mut self) {
        let session = SessionId(self.random.between(1, CLIENTS));
        let inode = InodeId(self.random.between(1, INODES));
        let choice = self.random.below(100);
        self.trace = mix(self.trace ^ choice ^ session.0 << 8 ^ inode.0 << 16);
        match choice {
            0..12 => self.show(session, inode),
            12..20 => self.acquire(session, inode),
            20..26 => self.open(session, inode),
            26..32 => self.give_back(session, inode),
            32..44 => self.change(session, inode),
            44..48 => self.give_up(),
            48..74 => self.deliver_down(session),
            _ => self.deliver_up(session),
        }
    }

    fn client(&mut self, session: SessionId) -> &mut Client {
        self.clients.get_mut(&session).expect("a client")
    }

    fn some_rights(&mut self) -> Rights {
        let first = *self.random.of(&EACH);
        let others = EACH.into_iter().filter(|_| self.random.chance(50));
        others.fold(first, |all, right| all | right)
    }

    /// Grants what is free, and sends it to the client.
    fn grant(&mut self, session: SessionId, inode: InodeId, rights: Rights) {
        let bars = |call: &Call| {
            let is_of = |demand: &Demand| match demand {
                Demand::Give(of, rights) => *of == inode && rights.contains(Rights::READ),
                Demand::Forget(of, _) => *of == inode,
                Demand::ReportOpen(_) => false,
            };
            call.session != session && call.demands.iter().any(is_of)
        };
        let is_barred = self.calls.values().any(bars);
        if let Some(grant) = self.leases.grant(session, inode, rights) {
            let is_shown = grant.rights.contains(Rights::READ);
            assert!(!(is_barred && is_shown), "READ over {inode} is granted while it is barred");
            self.client(session).down.push_back(Down::Grant(grant));
        }
    }

    /// A call shows an inode.
    fn show(&mut self, session: SessionId, inode: InodeId) {
        self.grant(session, inode, Rights::READ);
    }

    fn acquire(&mut self, session: SessionId, inode: InodeId) {
        let rights = self.some_rights() - Rights::READ;
        let demands = vec![Demand::Give(inode, rights & Rights::SIZE)];
        self.start(Call { session, demands, wants: Some((inode, rights)) });
    }

    /// A client opens a file, and reports that if it holds nothing over it.
    fn open(&mut self, session: SessionId, inode: InodeId) {
        let client = self.client(session);
        let held = client.belief.get(&inode).copied().unwrap_or_default();
        if !held.is_empty() {
            client.open.insert(inode);
            return;
        }
        let rights = Rights::READ | Rights::OPEN;
        self.start(Call { session, demands: Vec::new(), wants: Some((inode, rights)) });
    }

    /// A client returns rights, and closes a file with OPEN.
    fn give_back(&mut self, session: SessionId, inode: InodeId) {
        let mut rights = self.some_rights();
        if self.random.chance(50) {
            rights |= Rights::OPEN;
        }
        let client = self.client(session);
        if rights.contains(Rights::OPEN) {
            client.open.remove(&inode);
        } else if client.open.contains(&inode) {
            // It keeps what lets it open without a report.
            return;
        }
        let held = client.belief.entry(inode).or_default();
        *held = *held - rights;
        let back = Return { inode, rights, stamp: client.newest };
        client.up.push_back(Up::Back(back));
    }

    /// A call that changes an inode, or entries of it as a directory.
    fn change(&mut self, session: SessionId, inode: InodeId) {
        let all = Rights::READ | Rights::WRITE | Rights::SIZE;
        let demand = match self.random.below(4) {
            0 => Demand::Forget(inode, vec![b"name".to_vec()]),
            1 => Demand::Give(inode, all),
            _ => Demand::Give(inode, self.some_rights()),
        };
        self.start(Call { session, demands: vec![demand], wants: None });
    }

    fn start(&mut self, call: Call) {
        self.next_call += 1;
        let id = CallId(self.next_call);
        self.calls.insert(id, call);
        self.execute(id);
        self.go_on();
    }

    /// A caller gives its call up.
    fn give_up(&mut self) {
        let Some(id) = self.calls.keys().next().copied() else { return };
        self.calls.remove(&id);
        self.leases.done(id);
        self.go_on();
    }

    /// Sends what the table asks for, and continues with calls that may go on.
    fn go_on(&mut self) {
        loop {
            for ask in self.leases.take_outbox() {
                self.client(ask.session).down.push_back(Down::Ask(ask));
            }
            let ready: BTreeSet<CallId> = self.leases.take_ready().into_iter().collect();
            if ready.is_empty() {
                return;
            }
            for id in ready {
                self.execute(id);
            }
        }
    }

    fn execute(&mut self, id: CallId) {
        let Some(call) = self.calls.get(&id) else { return };
        let wants: Vec<(InodeId, Rights)> = call.wants.into_iter().collect();
        if self.leases.clear(id, call.session, &call.demands, &wants) == Clearance::Wait {
            return;
        }
        let call = self.calls.remove(&id).expect("the call");
        for demand in &call.demands {
            if let Demand::Give(inode, rights) = demand {
                self.nobody_else_has(call.session, *inode, *rights);
            }
        }
        self.leases.done(id);
        for (inode, rights) in wants {
            self.grant(call.session, inode, rights);
        }
    }

    /// Checks a call that is executed: no other client holds these rights or will get them, and if it
    /// had to give all, the service knows who has the file open.
    fn nobody_else_has(&self, session: SessionId, inode: InodeId, rights: Rights) {
        let openers = self.leases.openers(inode);
        let all = Rights::READ | Rights::WRITE | Rights::SIZE;
        for (other, client) in self.clients.iter().filter(|(other, _)| **other != session) {
            let held = client.belief.get(&inode).copied().unwrap_or_default();
            let coming = client.down.iter().map(|down| match down {
                Down::Grant(grant) if grant.inode == inode => grant.rights,
                _ => Rights::NONE,
            });
            let held = coming.fold(held, |all, rights| all | rights);
            assert!(
                !held.intersects(rights),
                "a call that needs {rights:?} of {inode} is executed while {other} holds {held:?}"
            );
            let is_known = openers.contains(other) || !client.open.contains(&inode);
            assert!(rights != all || is_known, "{other} has {inode} open, and nobody knows");
        }
    }

    /// A client takes its next message.
    fn deliver_down(&mut self, session: SessionId) {
        let client = self.client(session);
        match client.down.pop_front() {
            Some(Down::Grant(grant)) => {
                client.newest = client.newest.max(grant.stamp);
                if grant.rights.contains(Rights::OPEN) {
                    client.open.insert(grant.inode);
                }
                client.belief.insert(grant.inode, grant.rights);
            }
            Some(Down::Ask(ask)) => {
                let mut kept = Rights::NONE;
                match ask.what {
                    Asked::Recall(recall) => {
                        client.newest = client.newest.max(recall.stamp);
                        if client.open.contains(&recall.inode) {
                            kept = Rights::OPEN;
                        }
                        let held = client.belief.entry(recall.inode).or_default();
                        *held = (*held - recall.rights - Rights::OPEN) | kept;
                    }
                    Asked::Forget { stamp, .. } => client.newest = client.newest.max(stamp),
                }
                client.up.push_back(Up::Answered(ask.id, kept));
            }
            None => {}
        }
    }

    /// The service takes a client's next message.
    fn deliver_up(&mut self, session: SessionId) {
        match self.client(session).up.pop_front() {
            Some(Up::Answered(id, kept)) => {
                self.leases.answered(id, kept);
            }
            Some(Up::Back(back)) => {
                self.leases.give_back(session, back);
            }
            None => return,
        }
        self.go_on();
    }

    /// Delivers everything. All calls end, and the table knows what clients believe.
    fn settle(&mut self) {
        let sessions: Vec<SessionId> = self.clients.keys().copied().collect();
        let is_busy = |client: &Client| !client.down.is_empty() || !client.up.is_empty();
        while self.clients.values().any(is_busy) {
            for session in &sessions {
                self.deliver_down(*session);
                self.deliver_up(*session);
            }
        }
        assert!(self.calls.is_empty(), "{} calls wait for nothing", self.calls.len());
        for (session, client) in &self.clients {
            for (inode, believed) in &client.belief {
                let known = self.leases.rights(*session, *inode);
                assert!(
                    known.contains(*believed),
                    "{session} believes to hold {believed:?} over {inode}, and holds {known:?}"
                );
            }
        }
        for session in sessions {
            self.leases.end_session(session);
        }
        assert!(self.leases.is_empty(), "rights outlive all sessions");
    }
}
