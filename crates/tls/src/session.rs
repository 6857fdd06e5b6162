//! One connection as a state machine: bytes in, plain text out, and the other way round.

use crate::error::Error;
use crate::key::{Psk, shown};
use crate::server::{Asked, Server, library};
use crate::wires::Wired;
use ring::Buffer;
use s2n_tls::config::{self, Config};
use s2n_tls::connection::Connection;
use s2n_tls::enums::{Blinding, Mode, Version};
use s2n_tls::error::ErrorType;
use s2n_tls::security::Policy;
use std::fmt;
use std::task::{Poll, Waker};

/// TLS 1.3 alone, forward secrecy, AES-GCM before all else. Numbered policies of the library never change.
const POLICY: &str = "AWS-CRT-SDK-TLSv1.3-2023";

/// Bytes of the record that says farewell, at most.
pub const CLOSE_BYTES_MAX: usize = 64;

/// Plain text of one call of the library, at most: that of a record.
const RECORD_BYTES: usize = 16 << 10;

/// The cipher suite of a connection: it follows from its key's hash function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suite {
    /// `TLS_AES_128_GCM_SHA256`
    Aes128,
    /// `TLS_AES_256_GCM_SHA384`
    Aes256,
}

/// Where a connection stands.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// The handshake is under way.
    Shaking,
    /// Both know the key.
    Open,
    /// The peer has said farewell; we may still write.
    Ended,
    /// It failed, and fails again whatever is asked of it.
    Failed(Error),
}

/// One end of a connection.
///
/// The owner gives what it received to [`Session::handshake`] until that is over and then to
/// [`Session::read`], writes with [`Session::write`], and after each of them sends what
/// [`Session::take_output`] gives. It calls [`Session::close`] before it ends the stream, and
/// [`Session::end_of_stream`] when the peer's stream is at its end.
pub struct Session {
    wired: Wired,
    mode: Mode,
    state: State,
    /// The identity of the key that both know, once they do.
    peer: Vec<u8>,
    /// The identities that the connecting end offers.
    offered: Vec<Vec<u8>>,
    suite: Option<Suite>,
    is_closed: bool,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("identity", &shown(&self.peer))
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

/// What both sides ask of a connection.
pub(crate) fn configuration() -> Result<config::Builder, Error> {
    let fail = |error: s2n_tls::error::Error| library(&error);
    let mut builder = Config::builder();
    builder.set_security_policy(&Policy::from_version(POLICY).map_err(fail)?).map_err(fail)?;
    // Nobody can prove itself with a certificate.
    builder.with_system_certs(false).map_err(fail)?;
    Ok(builder)
}

impl Session {
    /// The connecting end, which knows this key. Its first message is in the output.
    ///
    /// # Errors
    /// [`Error::Library`].
    pub fn client(psk: &Psk) -> Result<Self, Error> {
        Self::client_of(std::slice::from_ref(psk))
    }

    /// The same for an end that knows several keys of one peer, best first, of which the peer chooses one.
    ///
    /// # Errors
    /// [`Error::Library`].
    pub fn client_of(psks: &[Psk]) -> Result<Self, Error> {
        let fail = |error: s2n_tls::error::Error| library(&error);
        let config = configuration()?.build().map_err(fail)?;
        let mut connection = Connection::new_client();
        for psk in psks {
            connection.append_psk(&psk.to_library().map_err(fail)?).map_err(fail)?;
        }
        let mut session = Self::new(connection, Mode::Client, config)?;
        session.offered = psks.iter().map(|psk| psk.identity().to_vec()).collect();
        session.peer = session.offered.first().cloned().unwrap_or_default();
        session.handshake(&mut &[][..])?;
        Ok(session)
    }

    /// The accepting end.
    ///
    /// # Errors
    /// [`Error::Library`].
    pub fn server(server: &Server) -> Result<Self, Error> {
        Self::new(Connection::new_server(), Mode::Server, server.config.clone())
    }

    fn new(mut connection: Connection, mode: Mode, config: Config) -> Result<Self, Error> {
        let fail = |error: s2n_tls::error::Error| library(&error);
        connection.set_config(config).map_err(fail)?;
        // The owner ends a connection that failed at once; records of TLS 1.3 tell nobody by the time they take.
        connection.set_blinding(Blinding::SelfService).map_err(fail)?;
        connection.prefer_throughput().map_err(fail)?;
        // Keys are found at once; the library asks for a waker all the same.
        connection.set_waker(Some(Waker::noop())).map_err(fail)?;
        let wired = Wired::new(connection)?;
        let state = State::Shaking;
        Ok(Self {
            wired,
            mode,
            state,
            peer: Vec::new(),
            offered: Vec::new(),
            suite: None,
            is_closed: false,
        })
    }

    /// Goes on with the handshake, by what was received. When it answers `true` both know the key, and the rest
    /// of `input` is for [`Session::read`]; when `false`, all of `input` is taken and more is needed. In
    /// either case, and after an error as well, there may be something to send.
    ///
    /// # Errors
    /// [`Error::Unknown`] and [`Error::Proof`] (accepting end), [`Error::Alert`], [`Error::Handshake`].
    pub fn handshake(&mut self, input: &mut &[u8]) -> Result<bool, Error> {
        match &self.state {
            State::Shaking => {}
            State::Open | State::Ended => return Ok(true),
            State::Failed(error) => return Err(error.clone()),
        }
        let done = self.wired.with(input, |connection| connection.poll_negotiate().map_ok(|_| ()));
        match done {
            Poll::Pending => Ok(false),
            Poll::Ready(Ok(())) => match self.inspect() {
                Ok(()) => {
                    self.state = State::Open;
                    Ok(true)
                }
                Err(error) => Err(self.fail(error)),
            },
            Poll::Ready(Err(error)) => {
                let error = self.refusal(&error);
                Err(self.fail(error))
            }
        }
    }

    /// Asserts what was agreed on: no handshake of another kind may pass for one with a key.
    fn inspect(&mut self) -> Result<(), Error> {
        let fail = |error: s2n_tls::error::Error| library(&error);
        let connection = self.wired.connection();
        let bytes = connection.negotiated_psk_identity_length().map_err(fail)?;
        if bytes == 0 {
            return Err(Error::Handshake("it was over without a pre-shared key"));
        }
        let mut identity = vec![0; bytes];
        connection.negotiated_psk_identity(&mut identity).map_err(fail)?;
        if self.mode == Mode::Client && !self.offered.contains(&identity) {
            return Err(Error::Handshake("the peer chose a key that was not offered"));
        }
        if connection.actual_protocol_version().map_err(fail)? != Version::TLS13 {
            return Err(Error::Handshake("the peer speaks an older TLS than 1.3"));
        }
        self.suite = Some(match connection.cipher_suite().map_err(fail)? {
            "TLS_AES_128_GCM_SHA256" => Suite::Aes128,
            "TLS_AES_256_GCM_SHA384" => Suite::Aes256,
            _ => return Err(Error::Handshake("the peer chose another cipher than AES-GCM")),
        });
        self.peer = identity;
        Ok(())
    }

    /// Why the handshake failed.
    fn refusal(&self, error: &s2n_tls::error::Error) -> Error {
        let connection = self.wired.connection();
        if let (ErrorType::Alert, Some(alert)) = (error.kind(), connection.alert()) {
            return Error::Alert(alert);
        }
        if error.kind() == ErrorType::ConnectionClosed {
            return Error::Truncated;
        }
        match (self.mode, connection.application_context::<Asked>()) {
            (Mode::Server, Some(Asked { found: None, named })) => {
                Error::Unknown(named.clone().unwrap_or_else(|| "it names none".into()))
            }
            (Mode::Server, Some(Asked { found: Some(identity), .. })) => {
                Error::Proof { identity: identity.clone(), reason: error.name() }
            }
            (Mode::Server | Mode::Client, _) => Error::Handshake(error.name()),
        }
    }

    fn fail(&mut self, error: Error) -> Error {
        self.state = State::Failed(error.clone());
        error
    }

    /// Whether the handshake is over and nothing has failed.
    pub fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// The identity of the key that both know; at the accepting end empty until the handshake is over.
    pub fn identity(&self) -> &[u8] {
        &self.peer
    }

    /// The cipher suite, once the handshake is over.
    pub fn suite(&self) -> Option<Suite> {
        self.suite
    }

    /// Takes all of `input` and appends the plain text in it to `plain`: no more bytes than `input` has, and
    /// those of a record that began earlier.
    ///
    /// # Errors
    /// [`Error::Record`], [`Error::Alert`]: the connection must be ended. [`Error::Ended`] if bytes come after
    /// the peer's farewell. What was read before the error stays in `plain`.
    pub fn read(&mut self, mut input: &[u8], plain: &mut Vec<u8>) -> Result<(), Error> {
        loop {
            let start = plain.len();
            plain.resize(start + RECORD_BYTES, 0);
            let read = self.read_into(&mut input, &mut plain[start..]);
            plain.truncate(start + read.as_ref().map_or(0, |&bytes| bytes));
            if read? == 0 {
                return Ok(());
            }
        }
    }

    /// Takes bytes from the front of `input` until there is plain text, of one record at most, and puts it into
    /// `plain`; answers how much. 0 says that all of `input` is taken and more is needed, or that the peer has said
    /// farewell ([`Session::has_ended`]).
    ///
    /// # Errors
    /// As [`Session::read`].
    pub fn read_into(&mut self, input: &mut &[u8], plain: &mut [u8]) -> Result<usize, Error> {
        match &self.state {
            State::Shaking => return Err(Error::Handshake("nothing can be read before its end")),
            State::Ended if input.is_empty() => return Ok(0),
            State::Ended => return Err(Error::Ended),
            State::Failed(error) => return Err(error.clone()),
            State::Open => {}
        }
        match self.wired.with(input, |connection| connection.poll_recv(plain)) {
            Poll::Pending => Ok(0),
            Poll::Ready(Ok(0)) if plain.is_empty() => Ok(0),
            Poll::Ready(Ok(0)) => {
                self.state = State::Ended;
                Ok(0)
            }
            Poll::Ready(Ok(bytes)) => Ok(bytes),
            Poll::Ready(Err(error)) => {
                let alert = self.wired.connection().alert();
                Err(self.fail(match (error.kind(), alert) {
                    (ErrorType::Alert, Some(alert)) => Error::Alert(alert),
                    (ErrorType::ConnectionClosed, _) => Error::Truncated,
                    _ => Error::Record(error.name()),
                }))
            }
        }
    }

    /// Says that no more bytes will come.
    ///
    /// # Errors
    /// [`Error::Truncated`] if the peer did not say farewell; an earlier error.
    pub fn end_of_stream(&mut self) -> Result<(), Error> {
        match &self.state {
            State::Ended => Ok(()),
            State::Failed(error) => Err(error.clone()),
            State::Shaking | State::Open => {
                self.wired.end_input();
                Err(self.fail(Error::Truncated))
            }
        }
    }

    /// Whether the peer has said farewell: nothing more can be read.
    pub fn has_ended(&self) -> bool {
        self.state == State::Ended
    }

    /// Encrypts `plain` behind what is to be sent already.
    ///
    /// # Errors
    /// [`Error::Handshake`] before the handshake is over, [`Error::Ended`] after [`Session::close`], an earlier
    /// error.
    pub fn write(&mut self, mut plain: &[u8]) -> Result<(), Error> {
        match &self.state {
            State::Shaking => {
                return Err(Error::Handshake("nothing can be written before its end"));
            }
            State::Failed(error) => return Err(error.clone()),
            State::Open | State::Ended if self.is_closed => return Err(Error::Ended),
            State::Open | State::Ended => {}
        }
        while !plain.is_empty() {
            let written = self.wired.with(&mut &[][..], |connection| connection.poll_send(plain));
            match written {
                Poll::Ready(Ok(bytes)) => plain = &plain[bytes..],
                Poll::Ready(Err(error)) => return Err(self.fail(Error::Library(error.name()))),
                Poll::Pending => {
                    return Err(self.fail(Error::Library("it waits though all is taken")));
                }
            }
        }
        Ok(())
    }

    /// Says farewell: after what this gives to send, the peer knows that nothing was cut off.
    pub fn close(&mut self) {
        if self.is_closed || !matches!(self.state, State::Open | State::Ended) {
            return;
        }
        self.is_closed = true;
        // Whether it succeeds does not matter any more: nothing can be written.
        let _ = self
            .wired
            .with(&mut &[][..], |connection| connection.poll_shutdown_send().map_ok(|_| ()));
    }

    /// Lends a buffer that takes what is to be sent from now on, as far as it has room.
    pub(crate) fn lend(&mut self, buffer: Buffer) {
        *self.wired.lent() = Some(buffer);
    }

    /// Takes back what was lent. What it holds is to be sent before [`Session::take_output`].
    pub(crate) fn take_lent(&mut self) -> Option<Buffer> {
        self.wired.lent().take()
    }

    /// Whether there is something to send.
    pub(crate) fn has_output(&mut self) -> bool {
        self.wired.lent().as_ref().is_some_and(|lent| !lent.is_empty())
            || !self.wired.output().is_empty()
    }

    /// What is to be sent.
    pub fn output(&mut self) -> &[u8] {
        self.wired.output()
    }

    /// Takes what is to be sent, leaving `spare` (emptied) for what comes next.
    pub fn take_output(&mut self, mut spare: Vec<u8>) -> Vec<u8> {
        spare.clear();
        std::mem::replace(self.wired.output(), spare)
    }
}
