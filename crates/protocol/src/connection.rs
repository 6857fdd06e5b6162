//! One end of a connection as a state machine without I/O: bytes in, events out, bytes to send.
//!
//! Both ends of every connection run this same code: the accepting end in the metadata service, the
//! connecting end in clients, agents and tools. It splits the stream into frames, performs the
//! handshake of [`crate::auth`], numbers calls, and bounds what a peer can make it store:
//!
//! - received bytes: one frame and what came with it in one [`Peer::receive`]; before the handshake
//!   is over only [`HANDSHAKE_MAX_BYTES`], so that strangers cost next to nothing;
//! - unanswered calls of the peer, and unanswered own calls;
//! - bytes to send that the peer does not take.
//!
//! The caller passes randomness in and watches the time (it calls [`Peer::forget`] when it no
//! longer waits for an answer), so that a simulation replays exactly.

use crate::auth::{self, Challenge, Hello, Opening, Proof, Role, Secret, Side, Welcome};
use crate::frame::{self, FrameError, HEADER_BYTES, Kind};
use serde::Serialize;
use std::collections::HashSet;
use thiserror::Error;

/// Longest frame of the handshake, in bytes.
pub const HANDSHAKE_MAX_BYTES: usize = 256;

/// The bounds of one end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most unanswered calls of the peer.
    pub calls_in_max: usize,
    /// Most unanswered own calls.
    pub calls_out_max: usize,
    /// Most encoded bytes that [`Peer::take_output`] has not taken (the owner calls it only when
    /// the bytes before are sent).
    pub output_max_bytes: usize,
}

impl Default for Limits {
    /// Returns 4096 calls either way, and 16 MiB of output.
    fn default() -> Limits {
        Limits { calls_in_max: 4096, calls_out_max: 4096, output_max_bytes: 16 << 20 }
    }
}

/// The reason to close a connection, or why a call cannot be made.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionError {
    /// The byte stream is broken.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The peer does not know the secret.
    #[error("peer does not know this job's secret; give it the secret file of the same job")]
    Secret,
    /// The state does not allow the received frame.
    #[error("peer sent {0}")]
    Unexpected(&'static str),
    /// The peer has more calls under way than it may.
    #[error("peer has more than {0} calls under way")]
    TooManyCallsIn(usize),
    /// There are too many own calls under way; the connection goes on.
    #[error("more than {0} calls are under way on this connection")]
    TooManyCallsOut(usize),
    /// The peer does not read.
    #[error("peer has left {0} bytes unread")]
    Output(usize),
    /// A call was made before the handshake was over.
    #[error("connection is not authenticated yet")]
    NotReady,
}

/// The meaning of received bytes. The owner decodes bodies with [`frame::decode`].
#[derive(Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// The handshake is over: both know the secret. Carries the connector's role.
    Ready(Role),
    /// A call of the peer, which must be answered once by [`Peer::answer`] with this tag.
    Call {
        /// The peer's number for the call.
        tag: u64,
        /// The encoded call.
        body: &'a [u8],
    },
    /// The answer to an own call.
    Answer {
        /// The tag that [`Peer::call`] returned.
        tag: u64,
        /// The encoded answer.
        body: &'a [u8],
    },
}

/// The state of the handshake.
#[derive(Debug)]
enum State {
    /// Accepting end: nothing has come.
    AwaitHello { secret: Secret, nonce: [u8; 32] },
    /// Accepting end: the challenge is out.
    AwaitProof { secret: Secret, hello: Hello, nonce: [u8; 32] },
    /// Connecting end: the hello is out.
    AwaitChallenge { secret: Secret, hello: Hello },
    /// Accepting end inside TLS: nothing has come.
    AwaitOpening,
    /// Connecting end inside TLS: the opening is out.
    AwaitWelcome { role: Role },
    /// Calls may be made.
    Ready,
}

/// One end of a connection.
#[derive(Debug)]
pub struct Peer {
    limits: Limits,
    state: State,
    /// Received bytes; those before `taken` are used up.
    input: Vec<u8>,
    taken: usize,
    output: Vec<u8>,
    /// Tags of the peer's unanswered calls.
    calls_in: HashSet<u64>,
    /// Tags of own unanswered calls.
    calls_out: HashSet<u64>,
    tag_next: u64,
}

impl Peer {
    fn new(limits: Limits, state: State) -> Peer {
        Peer {
            limits,
            state,
            input: Vec::new(),
            taken: 0,
            output: Vec::new(),
            calls_in: HashSet::new(),
            calls_out: HashSet::new(),
            tag_next: 1,
        }
    }

    /// Creates the connecting end; its hello is in the output. `nonce` must be random.
    ///
    /// # Panics
    /// Never: a hello always fits a frame.
    pub fn connect(secret: Secret, role: Role, nonce: [u8; 32], limits: Limits) -> Peer {
        let hello = Hello { version: crate::VERSION, role, nonce };
        let state = State::AwaitChallenge { secret, hello: hello.clone() };
        let mut peer = Peer::new(limits, state);
        frame::encode(Kind::Handshake, 0, &hello, &mut peer.output).expect("a hello fits a frame");
        peer
    }

    /// Creates the accepting end. `nonce` must be random.
    pub fn accept(secret: Secret, nonce: [u8; 32], limits: Limits) -> Peer {
        Peer::new(limits, State::AwaitHello { secret, nonce })
    }

    /// Creates the connecting end inside TLS, where both have proved already that they know a key;
    /// its opening is in the output.
    ///
    /// # Panics
    /// Never: an opening always fits a frame.
    pub fn open(role: Role, limits: Limits) -> Peer {
        let mut peer = Peer::new(limits, State::AwaitWelcome { role });
        let opening = Opening { version: crate::VERSION, role };
        frame::encode(Kind::Handshake, 0, &opening, &mut peer.output)
            .expect("an opening fits a frame");
        peer
    }

    /// Creates the accepting end inside TLS. The owner must check that the peer's key allows its
    /// role.
    pub fn welcome(limits: Limits) -> Peer {
        Peer::new(limits, State::AwaitOpening)
    }

    /// Returns whether the handshake is over.
    pub fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready)
    }

    /// Adds received bytes. [`Peer::event`] must be called until it returns `None` before more
    /// bytes are added: this bounds the memory.
    pub fn receive(&mut self, bytes: &[u8]) {
        self.input.drain(..self.taken);
        self.taken = 0;
        self.input.extend_from_slice(bytes);
    }

    /// Returns the next event, or `None` if more bytes are needed.
    ///
    /// # Errors
    /// Any [`ConnectionError`]: the connection must be closed then.
    pub fn event(&mut self) -> Result<Option<Event<'_>>, ConnectionError> {
        loop {
            let rest = &self.input[self.taken..];
            let taken = frame::take(rest)?.map(|(header, _)| header);
            let is_long = match (&taken, self.is_ready()) {
                (_, true) => false,
                (Some(header), false) => header.frame_bytes() > HANDSHAKE_MAX_BYTES,
                (None, false) => rest.len() > HANDSHAKE_MAX_BYTES,
            };
            if is_long {
                return Err(ConnectionError::Unexpected("an overlong frame before its handshake"));
            }
            let Some(header) = taken else { return Ok(None) };
            let body = self.taken + HEADER_BYTES..self.taken + header.frame_bytes();
            self.taken = body.end;
            let tag = header.tag;
            match header.kind {
                Kind::Handshake => {
                    if let Some(role) = self.handshake(body)? {
                        return Ok(Some(Event::Ready(role)));
                    }
                }
                _ if !self.is_ready() => {
                    return Err(ConnectionError::Unexpected("a call before its handshake"));
                }
                Kind::Call => {
                    self.admit_call(tag)?;
                    return Ok(Some(Event::Call { tag, body: &self.input[body] }));
                }
                Kind::Answer if self.calls_out.remove(&tag) => {
                    return Ok(Some(Event::Answer { tag, body: &self.input[body] }));
                }
                // The answer to a call that was given up.
                Kind::Answer if tag < self.tag_next => {}
                Kind::Answer => {
                    return Err(ConnectionError::Unexpected(
                        "an answer to a call that was never made",
                    ));
                }
            }
        }
    }

    fn admit_call(&mut self, tag: u64) -> Result<(), ConnectionError> {
        if self.calls_in.len() >= self.limits.calls_in_max {
            return Err(ConnectionError::TooManyCallsIn(self.limits.calls_in_max));
        }
        if !self.calls_in.insert(tag) {
            return Err(ConnectionError::Unexpected("a call with the tag of an unanswered one"));
        }
        Ok(())
    }

    /// Performs one step of the handshake; returns the connector's role after the last one.
    fn handshake(&mut self, body: std::ops::Range<usize>) -> Result<Option<Role>, ConnectionError> {
        let body = &self.input[body];
        let (next, role) = match &self.state {
            State::AwaitHello { secret, nonce } => {
                let hello: Hello = frame::decode(body)?;
                same_version(hello.version)?;
                let proof = auth::prove(secret, Side::Meta, &hello, nonce);
                let challenge = Challenge { nonce: *nonce, proof };
                frame::encode(Kind::Handshake, 0, &challenge, &mut self.output)?;
                (State::AwaitProof { secret: secret.clone(), hello, nonce: *nonce }, None)
            }
            State::AwaitProof { secret, hello, nonce } => {
                let Proof(proof) = frame::decode(body)?;
                if !auth::verify(secret, Side::Connector, hello, nonce, &proof) {
                    return Err(ConnectionError::Secret);
                }
                (State::Ready, Some(hello.role))
            }
            State::AwaitChallenge { secret, hello } => {
                let challenge: Challenge = frame::decode(body)?;
                let nonce = &challenge.nonce;
                if !auth::verify(secret, Side::Meta, hello, nonce, &challenge.proof) {
                    return Err(ConnectionError::Secret);
                }
                let proof = Proof(auth::prove(secret, Side::Connector, hello, nonce));
                frame::encode(Kind::Handshake, 0, &proof, &mut self.output)?;
                (State::Ready, Some(hello.role))
            }
            State::AwaitOpening => {
                let opening: Opening = frame::decode(body)?;
                same_version(opening.version)?;
                let welcome = Welcome { version: crate::VERSION };
                frame::encode(Kind::Handshake, 0, &welcome, &mut self.output)?;
                (State::Ready, Some(opening.role))
            }
            State::AwaitWelcome { role } => {
                let welcome: Welcome = frame::decode(body)?;
                same_version(welcome.version)?;
                (State::Ready, Some(*role))
            }
            State::Ready => return Err(ConnectionError::Unexpected("a second handshake")),
        };
        self.state = next;
        Ok(role)
    }

    /// Encodes a call to the peer and returns its tag.
    ///
    /// # Errors
    /// [`ConnectionError::NotReady`], [`ConnectionError::TooManyCallsOut`] and a
    /// [`FrameError::Length`] leave the connection as it is; after [`ConnectionError::Output`] it
    /// must be closed.
    pub fn call<T: Serialize>(&mut self, call: &T) -> Result<u64, ConnectionError> {
        if !self.is_ready() {
            return Err(ConnectionError::NotReady);
        }
        if self.calls_out.len() >= self.limits.calls_out_max {
            return Err(ConnectionError::TooManyCallsOut(self.limits.calls_out_max));
        }
        let tag = self.tag_next;
        self.encode(Kind::Call, tag, call)?;
        self.tag_next += 1;
        self.calls_out.insert(tag);
        Ok(tag)
    }

    /// Encodes the answer to the peer's call `tag`; has no effect if it was answered before.
    ///
    /// # Errors
    /// As [`Peer::call`].
    pub fn answer<T: Serialize>(&mut self, tag: u64, answer: &T) -> Result<(), ConnectionError> {
        if self.calls_in.contains(&tag) {
            self.encode(Kind::Answer, tag, answer)?;
            self.calls_in.remove(&tag);
        }
        Ok(())
    }

    fn encode<T: Serialize>(
        &mut self,
        kind: Kind,
        tag: u64,
        body: &T,
    ) -> Result<(), ConnectionError> {
        if self.output.len() >= self.limits.output_max_bytes {
            return Err(ConnectionError::Output(self.output.len()));
        }
        Ok(frame::encode(kind, tag, body, &mut self.output)?)
    }

    /// Gives up waiting for an own call's answer; it is dropped when it comes.
    pub fn forget(&mut self, tag: u64) {
        self.calls_out.remove(&tag);
    }

    /// Returns the number of own unanswered calls.
    pub fn calls_out(&self) -> usize {
        self.calls_out.len()
    }

    /// Returns the number of the peer's unanswered calls.
    pub fn calls_in(&self) -> usize {
        self.calls_in.len()
    }

    /// Returns the bytes that wait to be sent.
    pub fn output(&self) -> &[u8] {
        &self.output
    }

    /// Takes the bytes that wait to be sent; `spare`, emptied, gets the next ones.
    pub fn take_output(&mut self, mut spare: Vec<u8>) -> Vec<u8> {
        spare.clear();
        std::mem::replace(&mut self.output, spare)
    }
}

fn same_version(version: u16) -> Result<(), FrameError> {
    if version == crate::VERSION { Ok(()) } else { Err(FrameError::Version(version)) }
}

#[cfg(test)]
mod tests;
