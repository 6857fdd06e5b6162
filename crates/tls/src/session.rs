//! One connection as a state machine: it converts received bytes to plain text, and plain text to
//! bytes to send.

use crate::error::Error;
use crate::key::{Psk, shown};
use crate::library::{configuration, library};
use crate::records::{
    ALERT_BYTES, Fault, HEADER_BYTES, Held, OVERHEAD_BYTES, Opened, PLAIN_BYTES_MAX, RENEWAL_BYTES,
    Records,
};
use crate::server::{Asked, Server};
use crate::suite::Suite;
use crate::wires::Wired;
use reactor::Buffer;
use s2n_tls::config::Config;
use s2n_tls::connection::Connection;
use s2n_tls::enums::{Blinding, Mode, Version};
use s2n_tls::error::ErrorType;
use std::fmt;
use std::task::{Poll, Waker};
use zeroize::Zeroizing;

/// Largest size of the close message's record.
pub const CLOSE_BYTES_MAX: usize = 64;

/// The bytes to send.
#[derive(Default)]
struct Output {
    /// Gets records before `bytes` does, while it has space and `bytes` is empty.
    lent: Option<Buffer>,
    bytes: Vec<u8>,
}

impl Output {
    /// Returns space for this number of bytes at the end.
    fn place(&mut self, bytes: usize) -> &mut [u8] {
        match &mut self.lent {
            Some(lent) if self.bytes.is_empty() && lent.capacity() - lent.len() >= bytes => {
                let start = lent.len();
                lent.set_len(start + bytes);
                &mut lent[start..]
            }
            _ => {
                let start = self.bytes.len();
                self.bytes.resize(start + bytes, 0);
                &mut self.bytes[start..]
            }
        }
    }
}

/// The state of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// The handshake is under way.
    Shaking,
    /// Both sides have proved that they know the key.
    Open,
    /// The peer has sent its close message; this side may still write.
    Ended,
    /// The connection failed. Every further call returns this error.
    Failed(Error),
}

/// One end of a connection.
///
/// The owner gives received bytes to [`Session::handshake`] until it returns `true`, and then to
/// [`Session::read`]. It writes with [`Session::write`], and after each call sends the bytes of
/// [`Session::take_output`]. It calls [`Session::close`] before it ends the stream, and
/// [`Session::end_of_stream`] when the peer's stream has ended.
///
/// The library carries out the handshake; [`Records`] makes the records after it.
pub struct Session {
    /// The library's connection, until the handshake is over.
    wired: Option<Wired>,
    records: Option<Box<Records>>,
    /// Plain text of a record that did not fit into the caller's memory.
    held: Held,
    /// The received part of a record.
    partial: Vec<u8>,
    output: Output,
    mode: Mode,
    state: State,
    /// The identity of the key that both sides have proved to know.
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

impl Session {
    /// Returns the connecting end with this key. Its first message is in the output.
    ///
    /// # Errors
    /// [`Error::Library`].
    pub fn client(psk: &Psk) -> Result<Self, Error> {
        Self::client_of(std::slice::from_ref(psk))
    }

    /// Returns the connecting end with several keys for one peer, best first. The peer chooses one
    /// of them.
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

    /// Returns the accepting end.
    ///
    /// # Errors
    /// [`Error::Library`].
    pub fn server(server: &Server) -> Result<Self, Error> {
        Self::new(Connection::new_server(), Mode::Server, server.config.clone())
    }

    fn new(mut connection: Connection, mode: Mode, config: Config) -> Result<Self, Error> {
        let fail = |error: s2n_tls::error::Error| library(&error);
        connection.set_config(config).map_err(fail)?;
        // The owner ends a failed connection immediately; with TLS 1.3 records, timing reveals
        // nothing.
        connection.set_blinding(Blinding::SelfService).map_err(fail)?;
        // Keys are looked up immediately, but the library requires a waker.
        connection.set_waker(Some(Waker::noop())).map_err(fail)?;
        let wired = Wired::new(connection)?;
        Ok(Self {
            wired: Some(wired),
            records: None,
            held: Held::default(),
            partial: Vec::new(),
            output: Output::default(),
            mode,
            state: State::Shaking,
            peer: Vec::new(),
            offered: Vec::new(),
            suite: None,
            is_closed: false,
        })
    }

    /// Continues the handshake with received bytes. Returns `true` when both sides have proved that
    /// they know the key; the rest of `input` is then for [`Session::read`]. Returns `false` if all
    /// of `input` is taken and more is needed. In both cases, and after an error, there may be
    /// bytes to send.
    ///
    /// # Errors
    /// [`Error::Unknown`] and [`Error::Proof`] (accepting end), [`Error::Alert`],
    /// [`Error::Handshake`].
    pub fn handshake(&mut self, input: &mut &[u8]) -> Result<bool, Error> {
        match &self.state {
            State::Shaking => {}
            State::Open | State::Ended => return Ok(true),
            State::Failed(error) => return Err(error.clone()),
        }
        let Some(wired) = &mut self.wired else { unreachable!("a handshake has its connection") };
        let done = wired.with(input, |connection| connection.poll_negotiate().map_ok(|_| ()));
        self.output.bytes.append(wired.output());
        let result = match (done, &mut self.wired) {
            (Poll::Pending, _) => return Ok(false),
            (Poll::Ready(Ok(())), Some(wired)) => {
                inspect(wired.connection(), self.mode, &self.offered)
            }
            (Poll::Ready(Err(error)), Some(wired)) => {
                Err(refusal(wired.connection(), self.mode, &error))
            }
            (Poll::Ready(_), None) => unreachable!("it was there before the call"),
        };
        match result {
            Ok((identity, suite, records)) => {
                (self.peer, self.suite, self.state) = (identity, Some(suite), State::Open);
                self.records = Some(Box::new(records));
                // The library has exported its keys and cleared them.
                self.wired = None;
                Ok(true)
            }
            Err(error) => Err(self.fail(error)),
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

    /// Returns the identity of the key that both sides know; at the accepting end empty until the
    /// handshake is over.
    pub fn identity(&self) -> &[u8] {
        &self.peer
    }

    /// Returns the cipher suite, once the handshake is over.
    pub fn suite(&self) -> Option<Suite> {
        self.suite
    }

    /// Takes all of `input` and appends its plain text to `plain`, including that of a record that
    /// began earlier.
    ///
    /// # Errors
    /// [`Error::Record`], [`Error::Alert`]: the connection must be ended. [`Error::Ended`] if bytes
    /// come after the peer's close message. Plain text from before the error stays in `plain`.
    pub fn read(&mut self, mut input: &[u8], plain: &mut Vec<u8>) -> Result<(), Error> {
        loop {
            let start = plain.len();
            plain.resize(start + PLAIN_BYTES_MAX + 1, 0);
            let read = self.read_into(&mut input, &mut plain[start..]);
            plain.truncate(start + read.as_ref().map_or(0, |&bytes| bytes));
            if read? == 0 {
                return Ok(());
            }
        }
    }

    /// Takes bytes from the front of `input` until there is plain text, of one record at most, and
    /// puts it into `plain`. Returns its length. The bytes behind it in `plain` may change. 0 means
    /// that all of `input` is taken and more is needed, or that the peer has sent its close message
    /// ([`Session::has_ended`]).
    ///
    /// # Errors
    /// As [`Session::read`].
    pub fn read_into(&mut self, input: &mut &[u8], plain: &mut [u8]) -> Result<usize, Error> {
        match &self.state {
            State::Shaking => return Err(Error::Handshake("nothing can be read before its end")),
            State::Ended if input.is_empty() => return Ok(0),
            State::Ended => return Err(Error::Ended),
            State::Failed(error) => return Err(error.clone()),
            State::Open if plain.is_empty() => return Ok(0),
            State::Open => {}
        }
        loop {
            if !self.held.is_empty() {
                return Ok(self.held.take(plain));
            }
            match self.open_next(input, plain) {
                Ok(None) => return Ok(0),
                // A record without plain text is useless, but allowed.
                Ok(Some(Opened::Direct(0) | Opened::Held | Opened::Nothing)) => {}
                Ok(Some(Opened::Direct(bytes))) => return Ok(bytes),
                Ok(Some(Opened::Farewell)) => {
                    self.state = State::Ended;
                    return Ok(0);
                }
                Err(fault) => return Err(self.refuse(fault)),
            }
        }
    }

    /// Decrypts the next record if it is complete; otherwise stores the received part.
    fn open_next(&mut self, input: &mut &[u8], plain: &mut [u8]) -> Result<Option<Opened>, Fault> {
        let Some(records) = &mut self.records else { unreachable!("an open session has records") };
        if self.partial.is_empty()
            && let Some(bytes) = Records::length(input)?
            && let Some((record, rest)) = input.split_at_checked(bytes)
        {
            *input = rest;
            return records.open(record, plain, &mut self.held).map(Some);
        }
        loop {
            let whole = Records::length(&self.partial)?;
            let missing = whole.unwrap_or(HEADER_BYTES) - self.partial.len();
            if missing == 0 {
                let opened = records.open(&self.partial, plain, &mut self.held);
                self.partial.clear();
                return opened.map(Some);
            }
            let (piece, rest) = input.split_at(missing.min(input.len()));
            self.partial.extend_from_slice(piece);
            *input = rest;
            if piece.len() < missing {
                return Ok(None);
            }
        }
    }

    /// Ends the connection because of an error in received bytes, with an alert to the peer.
    fn refuse(&mut self, fault: Fault) -> Error {
        let Fault { alert, error } = fault;
        if let (Some(code), Some(records), false) = (alert, &mut self.records, self.is_closed) {
            // The connection ends in any case; the alert is a courtesy.
            let _ = records.seal_alert(Some(code), self.output.place(ALERT_BYTES));
        }
        self.fail(error)
    }

    /// Reports that no more bytes will come.
    ///
    /// # Errors
    /// [`Error::Truncated`] if the peer sent no close message; an earlier error.
    pub fn end_of_stream(&mut self) -> Result<(), Error> {
        match &self.state {
            State::Ended => Ok(()),
            State::Failed(error) => Err(error.clone()),
            State::Shaking | State::Open => Err(self.fail(Error::Truncated)),
        }
    }

    /// Whether the peer has sent its close message: nothing more can be read.
    pub fn has_ended(&self) -> bool {
        self.state == State::Ended
    }

    /// Encrypts `plain` and appends it to the bytes to send.
    ///
    /// # Errors
    /// [`Error::Handshake`] before the handshake is over, [`Error::Ended`] after
    /// [`Session::close`], an earlier error.
    pub fn write(&mut self, plain: &[u8]) -> Result<(), Error> {
        // An empty write is refused in the same states.
        self.check_writable()?;
        for piece in plain.chunks(PLAIN_BYTES_MAX) {
            self.write_record(piece.len(), |records, record| records.seal(Some(piece), record))?;
        }
        Ok(())
    }

    /// Encrypts a record of this number of bytes, which `fill` writes to the place where they are
    /// encrypted.
    ///
    /// # Errors
    /// As [`Session::write`].
    pub(crate) fn write_filled(
        &mut self,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), Error> {
        self.check_writable()?;
        self.write_record(bytes, |records, record| {
            fill(&mut record[HEADER_BYTES..HEADER_BYTES + bytes]);
            records.seal(None, record)
        })
    }

    fn check_writable(&self) -> Result<(), Error> {
        match &self.state {
            State::Shaking => Err(Error::Handshake("nothing can be written before its end")),
            State::Failed(error) => Err(error.clone()),
            State::Open | State::Ended if self.is_closed => Err(Error::Ended),
            State::Open | State::Ended => Ok(()),
        }
    }

    fn write_record(
        &mut self,
        bytes: usize,
        seal: impl FnOnce(&mut Records, &mut [u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Some(records) = &mut self.records else { unreachable!("an open session has records") };
        let mut sealed = Ok(());
        if records.owes_renewal() {
            sealed = records.seal_renewal(self.output.place(RENEWAL_BYTES));
        }
        let sealed = sealed.and_then(|()| seal(records, self.output.place(bytes + OVERHEAD_BYTES)));
        sealed.map_err(|error| self.fail(error))
    }

    /// Makes the close message. When the peer receives it, it knows that nothing was cut off.
    pub fn close(&mut self) {
        if self.is_closed || !matches!(self.state, State::Open | State::Ended) {
            return;
        }
        self.is_closed = true;
        if let Some(records) = &mut self.records {
            // Its failure does not matter: nothing more can be written.
            let _ = records.seal_alert(None, self.output.place(ALERT_BYTES));
        }
    }

    /// Lends a buffer that takes the bytes to send from now on, as long as it has space.
    pub(crate) fn lend(&mut self, buffer: Buffer) {
        self.output.lent = Some(buffer);
    }

    /// Takes back the lent buffer. Its content must be sent before [`Session::take_output`].
    pub(crate) fn take_lent(&mut self) -> Option<Buffer> {
        self.output.lent.take()
    }

    /// Whether there are bytes to send.
    pub(crate) fn has_output(&self) -> bool {
        self.output.lent.as_ref().is_some_and(|lent| !lent.is_empty())
            || !self.output.bytes.is_empty()
    }

    /// Returns the bytes to send.
    pub fn output(&self) -> &[u8] {
        &self.output.bytes
    }

    /// Takes the bytes to send, and leaves `spare` (emptied) for the following ones.
    pub fn take_output(&mut self, mut spare: Vec<u8>) -> Vec<u8> {
        spare.clear();
        std::mem::replace(&mut self.output.bytes, spare)
    }
}

/// Asserts the negotiated parameters: a handshake of another kind must not pass for one with a key.
/// Returns the key's identity and the record layer, which takes the connection over from the
/// library.
fn inspect(
    connection: &Connection,
    mode: Mode,
    offered: &[Vec<u8>],
) -> Result<(Vec<u8>, Suite, Records), Error> {
    let fail = |error: s2n_tls::error::Error| library(&error);
    let bytes = connection.negotiated_psk_identity_length().map_err(fail)?;
    if bytes == 0 {
        return Err(Error::Handshake("it was over without a pre-shared key"));
    }
    let mut identity = vec![0; bytes];
    connection.negotiated_psk_identity(&mut identity).map_err(fail)?;
    if mode == Mode::Client && !offered.contains(&identity) {
        return Err(Error::Handshake("the peer chose a key that was not offered"));
    }
    if connection.actual_protocol_version().map_err(fail)? != Version::TLS13 {
        return Err(Error::Handshake("the peer speaks an older TLS than 1.3"));
    }
    let suite = match connection.cipher_suite().map_err(fail)? {
        "TLS_AES_128_GCM_SHA256" => Suite::Aes128,
        "TLS_AES_256_GCM_SHA384" => Suite::Aes256,
        _ => return Err(Error::Handshake("the peer chose another cipher than AES-GCM")),
    };
    let mut export = Zeroizing::new(vec![0; connection.serialization_length().map_err(fail)?]);
    connection.serialize(&mut export).map_err(fail)?;
    let records = Records::of_export(&export, suite, mode == Mode::Client)?;
    Ok((identity, suite, records))
}

/// Returns the reason for a failed handshake.
fn refusal(connection: &Connection, mode: Mode, error: &s2n_tls::error::Error) -> Error {
    if let (ErrorType::Alert, Some(alert)) = (error.kind(), connection.alert()) {
        return Error::Alert(alert);
    }
    if error.kind() == ErrorType::ConnectionClosed {
        return Error::Truncated;
    }
    match (mode, connection.application_context::<Asked>()) {
        (Mode::Server, Some(Asked { found: None, named })) => {
            Error::Unknown(named.clone().unwrap_or_else(|| "it names none".into()))
        }
        (Mode::Server, Some(Asked { found: Some(identity), .. })) => {
            Error::Proof { identity: identity.clone(), reason: error.name() }
        }
        (Mode::Server | Mode::Client, _) => Error::Handshake(error.name()),
    }
}
