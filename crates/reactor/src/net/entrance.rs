//! The bounds of a listener's connections while their peers have not proved anything.
//!
//! A connection costs memory and a descriptor from its first packet on, so strangers must not be
//! able to take all of them. Connections that have not proved anything are *silent*. They have
//! slots of their own. When these are taken, the oldest silent connection of the peer with the most
//! of them ends. So a flood from one address ends its own connections. A host that proceeds with
//! its handshake keeps its slot even if it shares the flood's address, unless connections for a
//! whole set of slots are opened within that time. Connections that have proved something are *known*; no newcomer ends
//! them.
//!
//! A peer is an IPv4 address, or the 64-bit prefix of an IPv6 address, since one machine may use
//! all addresses of its prefix. Many nodes may share an address (tests on one machine, address
//! translation), so the bounds for one peer are generous, but leave room for others.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Bounds of an [`Entrance`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntranceLimits {
    /// Most connections at a time.
    pub total_max: usize,
    /// Most silent connections at a time.
    pub silent_max: usize,
    /// Most connections of one peer at a time.
    pub peer_max: usize,
}

impl EntranceLimits {
    /// Returns the bounds for `total_max` connections: a quarter may be silent (but 16, if there
    /// are that many), and one peer may have three quarters, so that others find room.
    pub fn of(total_max: usize) -> Self {
        let quarter = total_max / 4;
        Self {
            total_max,
            silent_max: quarter.max(16).min(total_max),
            peer_max: (total_max - quarter).max(1),
        }
    }
}

/// A peer: its connections are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Peer {
    V4(u32),
    V6(u64),
}

impl Peer {
    fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(v4) => Self::V4(v4.into()),
            IpAddr::V6(v6) => Self::V6((u128::from(v6) >> 64) as u64),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Silent,
    Known,
    /// It was asked to end.
    Ending,
}

/// The decision about a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entered {
    /// It is kept under this number. Another one, if given, has to end.
    Kept {
        /// Its number.
        id: u64,
        /// The connection that has to end.
        ending: Option<u64>,
    },
    /// Connections that were asked to end are still open: ask again soon.
    Busy,
    /// Known connections take all the room.
    Full,
    /// This peer has the most connections that one peer may have.
    PeerFull,
}

/// The connections of a listener.
#[derive(Debug)]
pub struct Entrance {
    limits: EntranceLimits,
    next_id: u64,
    connections: BTreeMap<u64, (Peer, State)>,
    /// Numbers ascend, so that the first of a set is the oldest.
    silent: BTreeMap<Peer, BTreeSet<u64>>,
    silent_count: usize,
    /// Silent and known connections.
    by_peer: BTreeMap<Peer, usize>,
}

impl Entrance {
    /// Makes an entrance without connections.
    pub fn new(limits: EntranceLimits) -> Self {
        Self {
            limits,
            next_id: 0,
            connections: BTreeMap::new(),
            silent: BTreeMap::new(),
            silent_count: 0,
            by_peer: BTreeMap::new(),
        }
    }

    /// Returns the number of connections, including those that were asked to end.
    pub fn len(&self) -> usize {
        self.connections.len()
    }

    /// Returns whether there is no connection.
    pub fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    /// Decides about a connection that was accepted.
    pub fn enter(&mut self, address: IpAddr) -> Entered {
        let (limits, peer) = (self.limits, Peer::of(address));
        let active = self.by_peer.values().sum::<usize>();
        // Ending connections are gone soon; until then their number is bounded.
        if self.connections.len() >= limits.total_max + limits.silent_max {
            return Entered::Busy;
        }
        let ending = if self.by_peer.get(&peer).is_some_and(|&count| count >= limits.peer_max) {
            match self.oldest_of(peer) {
                None => return Entered::PeerFull,
                oldest => oldest,
            }
        } else if active >= limits.total_max {
            match self.oldest() {
                None => return Entered::Full,
                oldest => oldest,
            }
        } else if self.silent_count >= limits.silent_max {
            self.oldest()
        } else {
            None
        };
        if let Some(ending) = ending {
            self.set(ending, State::Ending);
        }
        let id = self.next_id;
        self.next_id += 1;
        self.connections.insert(id, (peer, State::Silent));
        self.silent.entry(peer).or_default().insert(id);
        self.silent_count += 1;
        *self.by_peer.entry(peer).or_default() += 1;
        Entered::Kept { id, ending }
    }

    /// Records that the connection's peer has proved what it has to.
    pub fn prove(&mut self, id: u64) {
        if self.connections.get(&id).is_some_and(|(_, state)| *state == State::Silent) {
            self.set(id, State::Known);
        }
    }

    /// Removes a connection that is closed.
    pub fn leave(&mut self, id: u64) {
        self.set(id, State::Ending);
        self.connections.remove(&id);
    }

    /// Returns a silent connection that has to end, because descriptors are lacking.
    pub fn make_room(&mut self) -> Option<u64> {
        let oldest = self.oldest()?;
        self.set(oldest, State::Ending);
        Some(oldest)
    }

    fn oldest_of(&self, peer: Peer) -> Option<u64> {
        self.silent.get(&peer).and_then(BTreeSet::first).copied()
    }

    /// Returns the oldest silent connection of the peer with the most.
    fn oldest(&self) -> Option<u64> {
        let by_count = |ids: &&BTreeSet<u64>| (ids.len(), std::cmp::Reverse(ids.first().copied()));
        self.silent.values().max_by_key(by_count)?.first().copied()
    }

    fn set(&mut self, id: u64, new: State) {
        let Some((peer, state)) = self.connections.get_mut(&id) else { return };
        let (peer, old) = (*peer, std::mem::replace(state, new));
        if old == State::Silent && new != State::Silent {
            self.silent_count -= 1;
            let ids = self.silent.entry(peer).or_default();
            ids.remove(&id);
            if ids.is_empty() {
                self.silent.remove(&peer);
            }
        }
        if old != State::Ending && new == State::Ending {
            let count = self.by_peer.entry(peer).or_default();
            *count -= 1;
            if *count == 0 {
                self.by_peer.remove(&peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: EntranceLimits = EntranceLimits { total_max: 20, silent_max: 8, peer_max: 15 };

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn enter(entrance: &mut Entrance, last: u8) -> u64 {
        match entrance.enter(address(last)) {
            Entered::Kept { id, ending } => {
                if let Some(ending) = ending {
                    entrance.leave(ending);
                }
                id
            }
            other => panic!("{other:?}"),
        }
    }

    /// Goal: a flood of silent connections ends its own and lets others in, even from its own
    /// address while they are younger than a set of slots.
    #[test]
    fn floods_end_their_own() {
        let mut entrance = Entrance::new(LIMITS);
        let node = enter(&mut entrance, 1);
        for _ in 0..100 {
            enter(&mut entrance, 2);
        }
        let neighbour = enter(&mut entrance, 2);
        for _ in 0..6 {
            enter(&mut entrance, 2);
        }
        for id in [node, neighbour] {
            entrance.prove(id);
        }
        for _ in 0..100 {
            enter(&mut entrance, 2);
        }
        assert!(entrance.connections.contains_key(&node), "ended for a stranger");
        assert!(entrance.connections.contains_key(&neighbour), "ended for a stranger");
        assert_eq!(entrance.len(), 10);
    }

    /// Goal: known connections keep their slots; one peer cannot have all of them; addresses with
    /// one IPv6 prefix are one peer, and an IPv4 address is one peer in both of its forms.
    #[test]
    fn known_connections_stay_and_leave_room() {
        let mut entrance = Entrance::new(LIMITS);
        for _ in 0..15 {
            let id = enter(&mut entrance, 1);
            entrance.prove(id);
        }
        assert_eq!(entrance.enter(address(1)), Entered::PeerFull);
        let mapped = "::ffff:10.0.0.1".parse().unwrap();
        assert_eq!(entrance.enter(mapped), Entered::PeerFull);
        for last in 2..7 {
            let id = enter(&mut entrance, last);
            entrance.prove(id);
        }
        assert_eq!(entrance.enter(address(9)), Entered::Full);
        let mut entrance = Entrance::new(LIMITS);
        for last in 0..100 {
            let one = format!("2001:db8::{last:x}").parse().unwrap();
            assert!(matches!(entrance.enter(one), Entered::Kept { .. }));
            assert!(entrance.silent.len() == 1 && entrance.silent_count <= LIMITS.silent_max);
            let ending =
                |(id, (_, state)): (&u64, &(Peer, State))| (*state == State::Ending).then_some(*id);
            let gone: Vec<u64> = entrance.connections.iter().filter_map(ending).collect();
            for id in gone {
                entrance.leave(id);
            }
        }
    }

    proptest! {
        /// Goal: for all sequences of events, the counts match the connections, the bounds hold,
        /// and only silent connections are asked to end.
        #[test]
        fn counts_are_true(steps in prop::collection::vec((0..4_u8, 0..5_u8, any::<prop::sample::Index>()), 1..300)) {
            let mut entrance = Entrance::new(LIMITS);
            for (what, last, index) in steps {
                let ids: Vec<u64> = entrance.connections.keys().copied().collect();
                let before = entrance.connections.clone();
                match what {
                    2 if !ids.is_empty() => entrance.prove(*index.get(&ids)),
                    3 if !ids.is_empty() => entrance.leave(*index.get(&ids)),
                    _ => {
                        if let Entered::Kept { ending: Some(ending), .. } = entrance.enter(address(last)) {
                            prop_assert_eq!(before[&ending].1, State::Silent);
                        }
                    }
                }
                let of = |state| entrance.connections.values().filter(move |it| it.1 == state).count();
                let silent: usize = entrance.silent.values().map(BTreeSet::len).sum();
                prop_assert_eq!(silent, of(State::Silent));
                prop_assert_eq!(entrance.silent_count, silent);
                let active: usize = entrance.by_peer.values().sum();
                prop_assert_eq!(active, silent + of(State::Known));
                prop_assert!(active <= LIMITS.total_max && silent <= LIMITS.silent_max);
                prop_assert!(entrance.by_peer.values().all(|count| (1..=LIMITS.peer_max).contains(count)));
                prop_assert!(entrance.len() <= LIMITS.total_max + LIMITS.silent_max);
            }
        }
    }
}
