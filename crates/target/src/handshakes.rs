//! Limits on attempted proofs, because strangers can make this target compute by them.
//!
//! An attempt costs up to two exponentiations of thousands of bits before the peer is
//! authenticated. So each attempt takes a token from its peer's bucket, and one from a bucket that
//! all recently unauthenticated peers share; a successful proof returns both. So a host with the
//! key is never slowed down by its own attempts. A guessing host gets a few attempts and then one
//! every two seconds. Attempts in progress are unauthenticated connections, whose number
//! [`Entrance`](reactor::net::Entrance) bounds.

use reactor::time::Instant;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Number of attempts that a peer may make at once without a proof.
const PEER_TOKENS: u32 = 32;
/// Period after which a peer gets another attempt.
const PEER_PERIOD: Duration = Duration::from_secs(2);
/// Number of attempts that all unproved peers together may make at once.
const SHARED_TOKENS: u32 = 64;
/// Period after which they get another attempt.
const SHARED_PERIOD: Duration = Duration::from_millis(500);
/// Maximum number of remembered peers.
const PEERS_MAX: usize = 1024;
/// Time for which a proof keeps a peer out of the shared bucket.
const TRUST: Duration = Duration::from_mins(10);

/// Tokens that return over time.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    tokens: u32,
    tokens_max: u32,
    period: Duration,
    /// The time at which the last token returned.
    since: Instant,
}

impl Bucket {
    fn new(tokens_max: u32, period: Duration, now: Instant) -> Self {
        Self { tokens: tokens_max, tokens_max, period, since: now }
    }

    fn refill(&mut self, now: Instant) {
        let elapsed = if now > self.since { now.since(self.since) } else { Duration::ZERO };
        let periods = elapsed.as_nanos() / self.period.as_nanos();
        let missing = u128::from(self.tokens_max - self.tokens);
        if periods >= missing {
            (self.tokens, self.since) = (self.tokens_max, now);
        } else {
            self.tokens += periods as u32;
            self.since += self.period * periods as u32;
        }
    }

    fn take(&mut self, now: Instant) -> bool {
        self.refill(now);
        let has_one = self.tokens > 0;
        self.tokens -= u32::from(has_one);
        has_one
    }

    fn give_back(&mut self) {
        self.tokens = (self.tokens + 1).min(self.tokens_max);
    }
}

#[derive(Debug)]
struct Peer {
    bucket: Bucket,
    proved_at: Option<Instant>,
}

#[derive(Debug, Default)]
struct State {
    shared: Option<Bucket>,
    peers: BTreeMap<IpAddr, Peer>,
}

/// The attempts of all peers of a target.
#[derive(Debug, Default)]
pub(crate) struct Handshakes {
    state: Mutex<State>,
}

impl Handshakes {
    /// Begins an attempt, or returns [`None`] if this peer has to wait.
    pub(crate) fn begin(self: &Arc<Self>, peer: IpAddr, now: Instant) -> Option<Attempt> {
        let peer = network(peer);
        let mut state = self.state();
        let State { shared, peers } = &mut *state;
        if !peers.contains_key(&peer) && peers.len() >= PEERS_MAX {
            peers.retain(|_, known| !known.is_forgettable(now));
            if peers.len() >= PEERS_MAX {
                // Their buckets are full, so they lose only their trust.
                peers.retain(|_, known| known.bucket.tokens < known.bucket.tokens_max);
            }
            if peers.len() >= PEERS_MAX {
                return None;
            }
        }
        let known = peers.entry(peer).or_insert_with(|| Peer {
            bucket: Bucket::new(PEER_TOKENS, PEER_PERIOD, now),
            proved_at: None,
        });
        if !known.bucket.take(now) {
            return None;
        }
        let is_stranger = !known.is_trusted(now);
        if is_stranger {
            let fresh = Bucket::new(SHARED_TOKENS, SHARED_PERIOD, now);
            if !shared.get_or_insert(fresh).take(now) {
                known.bucket.give_back();
                return None;
            }
        }
        drop(state);
        Some(Attempt { handshakes: Arc::clone(self), peer, has_token: true, is_stranger })
    }

    /// Begins an attempt that costs too little to be limited.
    pub(crate) fn begin_cheap(self: &Arc<Self>, peer: IpAddr) -> Attempt {
        Attempt {
            handshakes: Arc::clone(self),
            peer: network(peer),
            has_token: false,
            is_stranger: false,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change is complete in itself.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Peer {
    fn is_trusted(&self, now: Instant) -> bool {
        self.proved_at.is_some_and(|at| now < at + TRUST)
    }

    /// Returns whether a new entry for this peer would equal this one.
    fn is_forgettable(&mut self, now: Instant) -> bool {
        self.bucket.refill(now);
        self.bucket.tokens == self.bucket.tokens_max && !self.is_trusted(now)
    }
}

/// One attempt of a proof.
#[derive(Debug)]
pub(crate) struct Attempt {
    handshakes: Arc<Handshakes>,
    peer: IpAddr,
    /// Whether it has taken a token of its peer.
    has_token: bool,
    is_stranger: bool,
}

impl Attempt {
    /// Records the success of the attempt and returns its tokens.
    pub(crate) fn succeed(self, now: Instant) {
        if !self.has_token {
            return;
        }
        let mut state = self.handshakes.state();
        if let Some(peer) = state.peers.get_mut(&self.peer) {
            peer.bucket.give_back();
            peer.proved_at = Some(now);
        }
        if self.is_stranger
            && let Some(shared) = &mut state.shared
        {
            shared.give_back();
        }
    }
}

/// Returns the address that identifies a peer: an IPv4 address, or a /64 network of IPv6, because
/// one machine usually has a whole one.
fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => {
            let mut octets = address.octets();
            octets[8..].fill(0);
            IpAddr::from(octets)
        }
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(n: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, n])
    }

    /// Goal: unauthenticated peers are slowed down, both each peer and all together; an
    /// authenticated host is not, however many attempts others make.
    #[test]
    fn attempts_are_bounded() {
        let start = reactor::time::now();
        let handshakes = Arc::<Handshakes>::default();
        let honest = || handshakes.begin(peer(1), start).unwrap().succeed(start);
        for _ in 0..1000 {
            honest();
        }
        let guesses = |from: u8, now| {
            (0..1000).filter(|_| handshakes.begin(peer(from), now).is_some()).count()
        };
        assert_eq!(guesses(2, start), PEER_TOKENS as usize);
        let more: usize = (3..40).map(|from| guesses(from, start)).sum();
        assert_eq!(more, (SHARED_TOKENS - PEER_TOKENS) as usize);
        for _ in 0..1000 {
            honest();
        }
        let later = start + PEER_PERIOD * 3;
        assert_eq!(guesses(2, later), 3);
        // The tokens of failed attempts do not return at once, not even for a peer that has proved
        // itself before.
        assert_eq!(guesses(1, start), PEER_TOKENS as usize);
    }

    /// Goal: the table of peers is bounded, and peers without failed attempts leave it.
    #[test]
    fn peers_are_forgotten() {
        let start = reactor::time::now();
        let handshakes = Arc::<Handshakes>::default();
        let address = |n: u32| IpAddr::from([10, 0, (n >> 8) as u8, n as u8]);
        let mut now = start;
        for n in 0..5000 {
            now += SHARED_PERIOD;
            assert!(handshakes.begin(address(n), now).is_some(), "{n}");
            assert!(handshakes.state().peers.len() <= PEERS_MAX);
        }
        let of = |text: &str| network(text.parse().unwrap());
        assert_eq!(of("fd00::1"), of("fd00::2"));
        assert_ne!(of("fd00:0:0:1::1"), of("fd00::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
    }
}
