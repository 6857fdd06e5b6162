use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const BYTES: u64 = 24;

fn lock(owner: u64, start: u64, last: u64, mode: LockMode) -> Lock {
    Lock {
        inode: InodeId(5),
        family: LockFamily::Posix,
        owner: LockOwner(owner),
        start,
        last,
        mode,
        pid: owner as u32,
    }
}

const S: SessionId = SessionId(1);
const EXCLUSIVE: LockMode = LockMode::Exclusive;
const SHARED: LockMode = LockMode::Shared;

/// Goal: waits are served in the order of arrival, and cancelled ones are not.
#[test]
fn waits_are_served_in_order() {
    let mut table = LockTable::default();
    let all = |owner| lock(owner, 0, u64::MAX, EXCLUSIVE);
    assert_eq!(table.set(S, all(1), None), Wish::Granted);
    for owner in 2..=4 {
        assert_eq!(table.set(S, all(owner), Some(WaitId(owner))), Wish::Waits);
    }
    let scope = (InodeId(5), LockFamily::Posix);
    assert_eq!(table.cancel(S, scope, LockOwner(2)), [WaitId(2)]);
    table.unlock(S, all(1));
    assert_eq!(table.take_granted(), [WaitId(3)]);
    table.unlock(S, all(3));
    assert_eq!(table.take_granted(), [WaitId(4)]);
    table.end_session(S);
    assert!(table.scopes.is_empty() && table.counts.is_empty());
}

/// Goal: a granted wait that weakens its owner's old lock allows waits that came before it.
#[test]
fn a_weakened_lock_lets_earlier_waits_in() {
    let mut table = LockTable::default();
    assert_eq!(table.set(S, lock(1, 0, 7, EXCLUSIVE), None), Wish::Granted);
    assert_eq!(table.set(S, lock(2, 8, 8, EXCLUSIVE), None), Wish::Granted);
    assert_eq!(table.set(S, lock(3, 4, 4, SHARED), Some(WaitId(3))), Wish::Waits);
    assert_eq!(table.set(S, lock(1, 0, 8, SHARED), Some(WaitId(1))), Wish::Waits);
    table.unlock(S, lock(2, 8, 8, SHARED));
    assert_eq!(table.take_granted(), [WaitId(1), WaitId(3)]);
}

/// Goal: a circle of waiting owners is refused, over any number of inodes.
#[test]
fn circles_are_refused() {
    let mut table = LockTable::default();
    let on = |inode, owner| Lock { inode: InodeId(inode), ..lock(owner, 0, 9, EXCLUSIVE) };
    for owner in 1..=3 {
        assert_eq!(table.set(S, on(owner, owner), None), Wish::Granted);
    }
    assert_eq!(table.set(S, on(2, 1), Some(WaitId(1))), Wish::Waits);
    assert_eq!(table.set(S, on(3, 2), Some(WaitId(2))), Wish::Waits);
    assert_eq!(table.set(S, on(1, 3), Some(WaitId(3))), Wish::Deadlock);
    // The same owner number in another session is another owner.
    let other = table.set(SessionId(2), on(1, 3), Some(WaitId(4)));
    assert_eq!(other, Wish::Waits);
}

/// Goal: flock converts as on Linux, and two conversions to exclusive do not hang.
#[test]
fn flock_converts() {
    let mut table = LockTable::default();
    let flock = |owner, mode| Lock { family: LockFamily::Flock, ..lock(owner, 3, 4, mode) };
    assert_eq!(table.set(S, flock(1, SHARED), None), Wish::Granted);
    assert_eq!(table.set(S, flock(2, SHARED), None), Wish::Granted);
    assert_eq!(table.set(S, lock(3, 0, 9, EXCLUSIVE), None), Wish::Granted, "families are apart");
    assert_eq!(table.set(S, flock(1, EXCLUSIVE), None), Wish::Conflict);
    assert!(table.test(S, &flock(9, EXCLUSIVE)).is_some());
    assert_eq!(table.set(S, flock(1, EXCLUSIVE), Some(WaitId(1))), Wish::Waits);
    // The first has released its lock while it waits.
    assert_eq!(table.set(S, flock(2, EXCLUSIVE), Some(WaitId(2))), Wish::Granted);
    assert_eq!(table.take_granted(), []);
    table.unlock(S, flock(2, EXCLUSIVE));
    assert_eq!(table.take_granted(), [WaitId(1)]);
}

/// The holders and modes of each byte.
#[derive(Default)]
struct Model(Vec<BTreeMap<(u64, u64), LockMode>>);

impl Model {
    fn new() -> Model {
        Model((0..BYTES).map(|_| BTreeMap::new()).collect())
    }

    fn conflicts(&self, session: u64, wish: &Lock) -> bool {
        (wish.start..=wish.last.min(BYTES - 1)).any(|at| {
            self.0[at as usize].iter().any(|(party, mode)| {
                *party != (session, wish.owner.0) && (*mode == EXCLUSIVE || wish.mode == EXCLUSIVE)
            })
        })
    }

    fn put(&mut self, session: u64, lock: &Lock, mode: Option<LockMode>) {
        for at in lock.start..=lock.last.min(BYTES - 1) {
            let byte = &mut self.0[at as usize];
            match mode {
                Some(mode) => byte.insert((session, lock.owner.0), mode),
                None => byte.remove(&(session, lock.owner.0)),
            };
        }
    }
}

/// Applies all changes to the stored locks, by session, owner and first byte.
fn store(table: &LockTable, stored: &mut BTreeMap<(u64, u64, u64), Lock>) {
    let scope = (InodeId(5), LockFamily::Posix);
    for (session, owner) in (1..3).flat_map(|session| (1..4).map(move |owner| (session, owner))) {
        for (start, lock) in table.changes(SessionId(session), scope, LockOwner(owner)) {
            match lock {
                Some(lock) => stored.insert((session, owner, start), lock),
                None => stored.remove(&(session, owner, start)),
            };
        }
    }
}

/// Goal: one more lock costs no more where tens of thousands are held (a table that searches all of
/// them takes minutes here), and its storing changes only its own record.
#[test]
fn many_locks_on_one_inode_do_not_slow_down() {
    let mut table = LockTable::default();
    let scope = (InodeId(5), LockFamily::Posix);
    let at = |number: u64| lock(1, 2 * number, 2 * number, EXCLUSIVE);
    for number in 0..50_000 {
        assert_eq!(table.set(S, at(number), None), Wish::Granted);
        assert_eq!(table.changes(S, scope, LockOwner(1)), [(2 * number, Some(at(number)))]);
        table.stored(S, scope, LockOwner(1));
        assert_eq!(table.set(SessionId(2), at(number / 2), None), Wish::Conflict);
    }
    for number in 0..50_000 {
        table.unlock(S, at(number));
        assert_eq!(table.changes(S, scope, LockOwner(1)), [(2 * number, None)]);
        table.stored(S, scope, LockOwner(1));
    }
    assert!(table.scopes.is_empty() && table.counts.is_empty());
}

#[derive(Clone, Debug)]
enum Step {
    Set(u64, u64, u64, u64, bool, bool),
    Unlock(u64, u64, u64, u64),
    End(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (s, o, b) = (1u64..3, 1u64..4, 0u64..BYTES);
    let set = (s.clone(), o.clone(), b.clone(), b.clone(), any::<bool>(), any::<bool>());
    let step = prop_oneof![
        6 => set.prop_map(|(s, o, a, b, x, w)| Step::Set(s, o, a.min(b), a.max(b), x, w)),
        4 => (s.clone(), o, b.clone(), b)
            .prop_map(|(s, o, a, b)| Step::Unlock(s, o, a.min(b), a.max(b))),
        1 => s.prop_map(Step::End),
    ];
    proptest::collection::vec(step, 1..60)
}

proptest! {
    /// Goal: after splits, merges, upgrades, waits and releases the table equals a table of bytes;
    /// no wait is forgotten; an owner's ranges are apart from one another.
    #[test]
    fn agrees_with_a_table_of_bytes(steps in steps()) {
        let mut table = LockTable::default();
        let mut model = Model::new();
        let mut waits: BTreeMap<WaitId, (u64, Lock)> = BTreeMap::new();
        let mut stored = BTreeMap::new();
        let mut next = 0;
        for step in steps {
            match step {
                Step::Set(session, owner, start, last, is_exclusive, waits_for_it) => {
                    let mode = if is_exclusive { EXCLUSIVE } else { SHARED };
                    let lock = lock(owner, start, last, mode);
                    let has_conflict = model.conflicts(session, &lock);
                    let found = table.test(SessionId(session), &lock);
                    prop_assert_eq!(found.is_some(), has_conflict);
                    next += 1;
                    let wait = waits_for_it.then_some(WaitId(next));
                    match table.set(SessionId(session), lock, wait) {
                        Wish::Granted => {
                            prop_assert!(!has_conflict);
                            model.put(session, &lock, Some(mode));
                        }
                        Wish::Conflict => prop_assert!(has_conflict && !waits_for_it),
                        Wish::Waits => {
                            waits.insert(WaitId(next), (session, lock));
                        }
                        Wish::Deadlock => prop_assert!(has_conflict && !waits.is_empty()),
                        Wish::TooMany => prop_assert!(false),
                    }
                }
                Step::Unlock(session, owner, start, last) => {
                    let lock = lock(owner, start, last, SHARED);
                    table.unlock(SessionId(session), lock);
                    model.put(session, &lock, None);
                }
                Step::End(session) => {
                    table.end_session(SessionId(session));
                    for byte in &mut model.0 {
                        byte.retain(|(s, _), _| *s != session);
                    }
                    waits.retain(|_, (s, _)| *s != session);
                    stored.retain(|(s, _, _), _| *s != session);
                }
            }
            for id in table.take_granted() {
                let (session, lock) = waits.remove(&id).expect("a known wait");
                prop_assert!(!model.conflicts(session, &lock));
                model.put(session, &lock, Some(lock.mode));
            }
            for (session, lock) in waits.values() {
                prop_assert!(model.conflicts(*session, lock), "a wait was forgotten");
            }
            let held: usize = table.scopes.values().map(|queue| queue.held.len()).sum();
            store(&table, &mut stored);
            prop_assert_eq!(stored.len(), held, "the stored locks differ from the held ones");
            prop_assert!(stored.iter().all(|((_, _, start), lock)| lock.start == *start));
            prop_assert_eq!(held, table.counts.values().sum::<usize>());
        }
    }
}

/// Goal: the locks of a session on an inode, of both families, move to another table and back
/// unchanged, and only if the session is alone there.
#[test]
fn all_of_a_session_goes_together() {
    let flock = Lock { family: LockFamily::Flock, ..lock(3, 0, u64::MAX, SHARED) };
    let held = [flock, lock(1, 0, 4, EXCLUSIVE), lock(2, 8, 9, SHARED)];
    let mut table = LockTable::default();
    for lock in held {
        assert_eq!(table.set(S, lock, None), Wish::Granted);
    }
    let alone = |table: &LockTable| {
        let mut alone = table.alone(S, InodeId(5), 3)?;
        alone.sort_by_key(|lock| (lock.start, lock.last != u64::MAX));
        Some(alone)
    };
    assert_eq!(alone(&table), Some(held.to_vec()));
    assert_eq!(table.alone(S, InodeId(5), 2), None, "they are too many");
    let mut other = LockTable::default();
    assert!(held.iter().all(|lock| other.report(S, *lock)));
    assert!(!other.report(S, lock(7, 2, 2, SHARED)), "another owner's lock conflicts");
    assert!(!other.report(S, lock(7, 7, 6, SHARED)), "it is empty");
    assert_eq!(alone(&other), Some(held.to_vec()));
    assert_eq!(other.unstored(S, InodeId(5)).len(), 3);
    assert_eq!(table.set(S, lock(4, 0, 0, SHARED), Some(WaitId(1))), Wish::Waits);
    assert_eq!(alone(&table), None, "another owner waits");
    table.clear(S, InodeId(5));
    assert_eq!(table.take_granted(), [WaitId(1)], "the waiting owner gets the free range");
    assert_eq!(table.set(SessionId(2), lock(4, 8, 8, SHARED), None), Wish::Granted);
    assert_eq!(alone(&table), None, "another session holds one");
    assert!(table.is_shared(S, InodeId(5)) && !other.is_shared(S, InodeId(5)));
}
