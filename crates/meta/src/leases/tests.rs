use super::*;
use proptest::prelude::*;
use protocol::lease::Return;
use std::collections::{BTreeMap, BTreeSet};

const READ: Rights = Rights::READ;
const WRITE: Rights = Rights::WRITE;
const SIZE: Rights = Rights::SIZE;
const OPEN: Rights = Rights::OPEN;

fn table() -> Leases {
    Leases::new(1000, HOLDINGS_PER_SESSION)
}

fn session(n: u64) -> SessionId {
    SessionId(n)
}

const I: InodeId = InodeId(10);

/// Goal: a call waits for the holders of rights that it conflicts with, and only for them.
#[test]
fn a_conflicting_call_waits_for_the_recall() {
    let mut leases = table();
    leases.grant(session(1), I, READ).unwrap();
    leases.grant(session(2), I, READ | WRITE).unwrap();
    let demands = [Demand::Give(I, READ)];
    assert_eq!(leases.clear(CallId(1), session(1), &demands, &[]), Clearance::Wait);
    let asks = leases.take_outbox();
    assert_eq!(asks.len(), 1);
    assert_eq!(asks[0].session, session(2));
    assert!(leases.grant(session(3), I, READ).is_none(), "barred");
    assert!(leases.grant(session(1), I, READ).is_some(), "not against itself");
    leases.answered(asks[0].id, Rights::NONE);
    assert_eq!(leases.take_ready(), vec![CallId(1)]);
    assert_eq!(leases.clear(CallId(1), session(1), &demands, &[]), Clearance::Clear);
    leases.done(CallId(1));
    assert_eq!(leases.rights(session(2), I), WRITE);
    assert!(leases.grant(session(3), I, READ).is_some());
}

/// Goal: a call asks its own session for opens without a report, until the session reports OPEN or
/// holds nothing.
#[test]
fn a_call_asks_its_own_session_for_unreported_opens() {
    for kept in [OPEN, Rights::NONE] {
        let mut leases = table();
        leases.grant(session(1), I, READ | WRITE).unwrap();
        let demands = [Demand::ReportOpen(I)];
        assert_eq!(leases.clear(CallId(1), session(1), &demands, &[]), Clearance::Wait);
        let asks = leases.take_outbox();
        assert_eq!(asks.len(), 2, "READ by a message of its own");
        assert!(leases.grant(session(2), I, READ).is_some(), "nothing is barred");
        for ask in asks {
            assert_eq!(ask.session, session(1));
            leases.answered(ask.id, kept);
        }
        assert_eq!(leases.take_ready(), vec![CallId(1)]);
        assert_eq!(leases.clear(CallId(1), session(1), &demands, &[]), Clearance::Clear);
        assert_eq!(leases.rights(session(1), I), kept);
    }
}

/// Goal: READ is recalled by a message of its own, so that it never waits for a commit.
#[test]
fn read_is_recalled_apart_from_write() {
    let mut leases = table();
    leases.grant(session(2), I, READ | WRITE | SIZE).unwrap();
    leases.clear(CallId(1), session(1), &[Demand::Give(I, READ | WRITE | SIZE)], &[]);
    let asks = leases.take_outbox();
    let rights: Vec<Rights> = asks
        .iter()
        .map(|ask| match &ask.what {
            Asked::Recall(recall) => recall.rights,
            Asked::Forget { .. } => panic!("not a directory"),
        })
        .collect();
    assert_eq!(rights, [READ, WRITE | SIZE]);
}

/// Goal: a second call joins a recall that is under way.
#[test]
fn recalls_are_shared() {
    let mut leases = table();
    leases.grant(session(3), I, SIZE).unwrap();
    let demands = [Demand::Give(I, SIZE)];
    leases.clear(CallId(1), session(1), &demands, &[(I, SIZE)]);
    leases.clear(CallId(2), session(2), &demands, &[(I, SIZE)]);
    let asks = leases.take_outbox();
    assert_eq!(asks.len(), 1);
    leases.answered(asks[0].id, Rights::NONE);
    assert_eq!(leases.take_ready(), vec![CallId(1), CallId(2)]);
    // The first call comes first; the second waits for its bar.
    assert_eq!(leases.clear(CallId(2), session(2), &demands, &[(I, SIZE)]), Clearance::Wait);
    assert_eq!(leases.clear(CallId(1), session(1), &demands, &[(I, SIZE)]), Clearance::Clear);
    leases.done(CallId(1));
    assert!(leases.grant(session(1), I, SIZE).is_none_or(|g| !g.rights.contains(SIZE)));
    assert_eq!(leases.take_ready(), vec![CallId(2)]);
}

/// Goal: changes of a directory name the entry to few holders, and recall many.
#[test]
fn directories_invalidate_few_and_recall_many() {
    let mut leases = table();
    for n in 1..=3 {
        leases.grant(session(n), I, READ).unwrap();
    }
    let demand = [Demand::Forget(I, vec![b"a".to_vec()])];
    assert_eq!(leases.clear(CallId(1), session(1), &demand, &[]), Clearance::Wait);
    let asks = leases.take_outbox();
    assert_eq!(asks.len(), 2);
    for ask in asks {
        assert!(matches!(ask.what, Asked::Forget { .. }));
        leases.answered(ask.id, Rights::NONE);
    }
    assert_eq!(leases.clear(CallId(1), session(1), &demand, &[]), Clearance::Clear);
    leases.done(CallId(1));
    assert_eq!(leases.rights(session(2), I), READ);
    for n in 4..=20 {
        leases.grant(session(n), I, READ).unwrap();
    }
    leases.clear(CallId(2), session(1), &demand, &[]);
    let asks = leases.take_outbox();
    assert_eq!(asks.len(), 19);
    assert!(asks.iter().all(|ask| matches!(ask.what, Asked::Recall(_))));
}

/// Goal: a right that is granted after the stamp of a return or recall stays.
#[test]
fn later_grants_survive_give_back_and_recall() {
    let mut leases = table();
    let old = leases.grant(session(1), I, READ).unwrap();
    let new = leases.grant(session(1), I, OPEN).unwrap();
    let back = |stamp| Return { inode: I, rights: READ | OPEN, stamp };
    assert!(!leases.give_back(session(1), back(old.stamp)));
    assert_eq!(leases.rights(session(1), I), READ | OPEN);
    // A recall is on its way when OPEN is granted: the earlier answer does not take OPEN.
    leases.give_back(session(1), Return { inode: I, rights: OPEN, stamp: new.stamp });
    leases.clear(CallId(1), session(2), &[Demand::Give(I, READ | OPEN)], &[]);
    let asks = leases.take_outbox();
    let grant = leases.grant(session(1), I, OPEN).unwrap();
    assert_eq!(grant.rights, OPEN, "a right under recall does not count as held");
    leases.answered(asks[0].id, Rights::NONE);
    assert_eq!(leases.rights(session(1), I), OPEN);
    assert!(leases.give_back(session(1), back(grant.stamp)));
    assert!(leases.is_empty());
}

/// Goal: a session's holdings are bounded; the oldest go first.
#[test]
fn the_oldest_holdings_are_recalled() {
    let mut leases = Leases::new(0, 4);
    for n in 1..=6 {
        leases.grant(session(1), InodeId(n), READ).unwrap();
    }
    let asks = leases.take_outbox();
    let inodes: Vec<InodeId> = asks
        .iter()
        .map(|ask| match &ask.what {
            Asked::Recall(recall) => recall.inode,
            Asked::Forget { inode, .. } => *inode,
        })
        .collect();
    assert_eq!(inodes, [InodeId(1), InodeId(2)]);
    for n in 7..=8 {
        leases.grant(session(1), InodeId(n), READ).unwrap();
    }
    assert!(leases.grant(session(1), InodeId(9), READ).is_none(), "twice too many is refused");
    for ask in &asks {
        leases.answered(ask.id, Rights::NONE);
    }
    assert!(leases.grant(session(1), InodeId(9), READ).is_some());
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Grant(u64, u64, u8),
    Start(u64, u64, u8),
    Forget(u64, u64),
    Acquire(u64, u64, u8),
    Answer(usize, bool),
    GiveBack(u64, u64, u8),
    GiveUp(usize),
    End(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (s, i, r) = (1u64..4, 1u64..3, 1u8..8);
    let step = prop_oneof![
        4 => (s.clone(), i.clone(), 1u8..16).prop_map(|(a, b, c)| Step::Grant(a, b, c)),
        3 => (s.clone(), i.clone(), r.clone()).prop_map(|(a, b, c)| Step::Start(a, b, c)),
        2 => (s.clone(), i.clone()).prop_map(|(a, b)| Step::Forget(a, b)),
        2 => (s.clone(), i.clone(), 1u8..4).prop_map(|(a, b, c)| Step::Acquire(a, b, c << 1)),
        6 => (any::<usize>(), any::<bool>()).prop_map(|(a, b)| Step::Answer(a, b)),
        1 => (s.clone(), i, r).prop_map(|(a, b, c)| Step::GiveBack(a, b, c)),
        1 => any::<usize>().prop_map(Step::GiveUp),
        1 => s.prop_map(Step::End),
    ];
    proptest::collection::vec(step, 1..80)
}

struct Call {
    session: SessionId,
    demands: Vec<Demand>,
    wants: Vec<(InodeId, Rights)>,
}

/// A model of what clients believe, and of the calls under way.
#[derive(Default)]
struct World {
    calls: BTreeMap<CallId, Call>,
    asks: Vec<Ask>,
    /// What each client believes to hold.
    belief: BTreeMap<(SessionId, InodeId), Rights>,
    next_call: u64,
}

impl World {
    /// Continues with all ready calls, checking each that is executed.
    fn go_on(&mut self, leases: &mut Leases) {
        loop {
            self.take_asks(leases);
            let ready: BTreeSet<CallId> = leases.take_ready().into_iter().collect();
            if ready.is_empty() {
                return;
            }
            for id in ready {
                self.try_execute(leases, id);
            }
        }
    }

    fn take_asks(&mut self, leases: &mut Leases) {
        for ask in leases.take_outbox() {
            self.asks.push(ask);
        }
    }

    fn try_execute(&mut self, leases: &mut Leases, id: CallId) {
        let Some(call) = self.calls.get(&id) else { return };
        if leases.clear(id, call.session, &call.demands, &call.wants) == Clearance::Wait {
            assert!(leases.is_waiting(id));
            return;
        }
        let call = self.calls.remove(&id).unwrap();
        for demand in &call.demands {
            if let Demand::Give(inode, rights) = demand {
                for ((session, i), held) in &self.belief {
                    let is_other = *session != call.session && i == inode;
                    assert!(!is_other || !held.intersects(*rights), "executed against a holder");
                }
            }
        }
        leases.done(id);
        for (inode, rights) in call.wants {
            if let Some(grant) = leases.grant(call.session, inode, rights) {
                self.believe(call.session, inode, grant.rights);
            }
        }
    }

    fn believe(&mut self, session: SessionId, inode: InodeId, rights: Rights) {
        self.belief.insert((session, inode), rights);
        let sizes = self.belief.iter().filter(|((_, i), r)| *i == inode && r.contains(SIZE));
        assert!(sizes.count() <= 1, "two hold SIZE");
    }

    fn start(&mut self, leases: &mut Leases, call: Call) {
        self.next_call += 1;
        let id = CallId(self.next_call);
        self.calls.insert(id, call);
        self.try_execute(leases, id);
        self.go_on(leases);
    }

    /// Gives up the requested rights for the client, then answers.
    fn answer(&mut self, leases: &mut Leases, at: usize, keeps_open: bool) {
        if self.asks.is_empty() {
            return;
        }
        let ask = self.asks.remove(at % self.asks.len());
        let mut kept = Rights::NONE;
        if let Asked::Recall(recall) = &ask.what {
            let held = self.belief.entry((ask.session, recall.inode)).or_default();
            kept = if keeps_open { *held & OPEN } else { Rights::NONE };
            *held = (*held - recall.rights - OPEN) | kept;
        }
        leases.answered(ask.id, kept);
        self.go_on(leases);
    }

    fn end(&mut self, leases: &mut Leases, session: SessionId) {
        self.asks.retain(|ask| ask.session != session);
        self.belief.retain(|(s, _), _| *s != session);
        let mine = self.calls.iter().filter(|(_, call)| call.session == session);
        let mine: Vec<CallId> = mine.map(|(id, _)| *id).collect();
        for id in mine {
            self.calls.remove(&id);
            leases.done(id);
        }
        leases.end_session(session);
        self.go_on(leases);
    }

    fn step(&mut self, leases: &mut Leases, step: Step) {
        match step {
            Step::Grant(s, i, rights) => {
                let (s, i) = (SessionId(s), InodeId(i));
                let rights = Rights(rights) - SIZE;
                let barred = self.calls.values().any(|call| {
                    call.session != s
                        && call.demands.iter().any(|d| d.inode() == i && d.bars().contains(READ))
                });
                if let Some(grant) = leases.grant(s, i, rights) {
                    let is_new = rights.contains(READ) && grant.rights.contains(READ);
                    assert!(!(barred && is_new), "READ was granted while barred");
                    // Grants reach the client behind earlier asks, so those come first.
                    self.believe(s, i, grant.rights);
                }
            }
            Step::Start(s, i, rights) => {
                let demands = vec![Demand::Give(InodeId(i), Rights(rights))];
                self.start(leases, Call { session: SessionId(s), demands, wants: vec![] });
            }
            Step::Forget(s, i) => {
                let demands = vec![Demand::Forget(InodeId(i), vec![b"n".to_vec()])];
                self.start(leases, Call { session: SessionId(s), demands, wants: vec![] });
            }
            Step::Acquire(s, i, rights) => {
                let (inode, rights) = (InodeId(i), Rights(rights));
                let demands = vec![Demand::Give(inode, rights & SIZE)];
                let wants = vec![(inode, rights)];
                self.start(leases, Call { session: SessionId(s), demands, wants });
            }
            Step::Answer(at, keeps_open) => self.answer(leases, at, keeps_open),
            Step::GiveBack(s, i, rights) => {
                self.give_back(leases, SessionId(s), InodeId(i), rights);
            }
            Step::GiveUp(at) => {
                if let Some(id) = self.calls.keys().nth(at % 8).copied() {
                    self.calls.remove(&id);
                    leases.done(id);
                    self.go_on(leases);
                }
            }
            Step::End(s) => self.end(leases, SessionId(s)),
        }
    }

    fn give_back(&mut self, leases: &mut Leases, s: SessionId, inode: InodeId, rights: u8) {
        // A client with an unanswered ask answers first.
        if self.asks.iter().any(|ask| ask.session == s) {
            return;
        }
        let rights = Rights(rights);
        if let Some(held) = self.belief.get_mut(&(s, inode)) {
            *held = *held - rights;
        }
        let stamp = LeaseStamp(u64::MAX);
        leases.give_back(s, Return { inode, rights, stamp });
    }
}

proptest! {
    /// Goal: in any order of events, no call is executed against a holder, READ is not granted
    /// between a recall and its call, SIZE has one holder, no call waits for its own session, and
    /// every call ends once the asks are answered.
    #[test]
    fn rights_never_conflict_and_calls_end(steps in steps()) {
        let mut leases = table();
        let mut world = World::default();
        for step in steps {
            world.step(&mut leases, step);
            for ask in &world.asks {
                let calls = leases.asks.get(&ask.id).map(|open| open.calls.clone());
                for call in calls.unwrap_or_default() {
                    prop_assert_ne!(world.calls[&call].session, ask.session);
                }
            }
        }
        while !world.asks.is_empty() {
            world.answer(&mut leases, 0, false);
        }
        prop_assert!(world.calls.is_empty(), "calls are stuck");
        for n in 1..4 {
            world.end(&mut leases, SessionId(n));
        }
        prop_assert!(leases.is_empty() && leases.busy.is_empty() && leases.asks.is_empty());
        prop_assert!(leases.waiting.is_empty());
    }
}

/// Goal: a session that reports another session's right after a resume does not get it.
#[test]
fn what_is_anothers_is_not_reclaimed() {
    let mut leases = table();
    leases.grant(session(1), I, SIZE | OPEN).unwrap();
    leases.resume(session(2));
    let grant = leases.reclaim(session(2), I, SIZE | OPEN).unwrap();
    assert_eq!(grant.rights, OPEN);
    assert_eq!(leases.rights(session(1), I), SIZE | OPEN);
}

/// Goal: LOCKS has one holder. It is recalled by a message of its own, and ends with the report,
/// which contains whether the inode is open; the answer to the recall comes later.
#[test]
fn locks_end_with_their_report() {
    let locks = Rights::LOCKS;
    let mut leases = table();
    leases.grant(session(1), I, locks).unwrap();
    assert!(leases.grant(session(2), I, locks).is_none(), "it has two holders");
    leases.grant(session(1), I, READ).unwrap();
    leases.clear(CallId(1), session(2), &[Demand::Give(I, READ | WRITE | locks)], &[]);
    let asks = leases.take_outbox();
    assert_eq!(asks.len(), 2, "LOCKS by a message of its own: {asks:?}");
    leases.end_locks(session(1), I, true);
    assert_eq!(leases.rights(session(1), I), READ | OPEN);
    assert!(leases.grant(session(1), I, locks).is_none(), "the other call bars it");
    for ask in asks {
        leases.answered(ask.id, OPEN);
    }
    assert_eq!(leases.take_ready(), vec![CallId(1)]);
    leases.done(CallId(1));
    assert_eq!(leases.rights(session(1), I), OPEN);
    leases.grant(session(2), I, locks).unwrap();
    leases.resume(session(2));
    assert!(leases.reclaim(session(1), I, locks).is_none(), "it is another's");
    leases.end_reclaim(session(2));
    assert_eq!(leases.rights(session(2), I), Rights::NONE, "it was not reclaimed");
}
