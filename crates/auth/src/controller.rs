//! The controller's side: the authentication of one queue pair, for its first transaction and later
//! ones.
//!
//! [`Controller::receive`] takes the host's messages and [`Controller::next_message`] returns the
//! answers, as the host's commands request. An unexpected message ends the transaction with a
//! failure and has no other effect. The expensive operations, exponentiations, are done at most
//! twice in a transaction.

use crate::Policy;
use crate::group::{Exchange, Group};
use crate::key::KeyPair;
use crate::response::{Names, Side, Terms, challenge, sequence};
use crate::tls_key::TlsKey;
use nvme::auth::{Message, Reason};
use subtle::ConstantTimeEq;

/// The progress of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// No transaction has begun.
    Idle,
    /// The host must send or fetch a message.
    Going,
    /// The host has proved itself, and so has the controller if it was requested.
    Proved,
    /// The transaction failed; the host may still fetch the reason.
    Failed(Reason),
}

#[derive(Debug)]
enum State {
    Idle,
    /// The host must fetch the challenge.
    Challenging(Box<Transaction>),
    /// The host has the challenge.
    Challenged(Box<Transaction>),
    /// The host must fetch Success1 (this message), and then answer it if it demanded a proof.
    Succeeding {
        transaction: u16,
        message: Vec<u8>,
        is_answered: bool,
    },
    /// The host must check the controller's proof.
    Judging {
        transaction: u16,
    },
    Proved,
    /// The host must fetch the failure, if it has not yet.
    Failed {
        transaction: u16,
        reason: Reason,
        is_told: bool,
    },
}

#[derive(Debug)]
struct Transaction {
    terms: Terms,
    group: Group,
    exchange: Option<Exchange>,
    challenge: Vec<u8>,
    sequence: u32,
}

/// The authentication of one queue pair.
#[derive(Debug)]
pub struct Controller {
    keys: KeyPair,
    names: Names,
    policy: Policy,
    state: State,
    /// The key that the present transaction has generated.
    generated: Option<Box<TlsKey>>,
}

impl Controller {
    /// Returns a controller that waits for the first message.
    pub fn new(keys: KeyPair, names: Names, policy: Policy) -> Self {
        Self { keys, names, policy, state: State::Idle, generated: None }
    }

    /// Returns the names of the parties.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Whether hosts and the controller authenticate with these secrets.
    pub fn is_by(&self, keys: &KeyPair) -> bool {
        self.keys == *keys
    }

    /// Takes the TLS key that the last transaction has generated, after it has succeeded.
    pub fn take_generated(&mut self) -> Option<TlsKey> {
        if self.progress() != Progress::Proved {
            return None;
        }
        self.generated.take().map(|key| *key)
    }

    /// Returns the progress.
    pub fn progress(&self) -> Progress {
        match &self.state {
            State::Idle => Progress::Idle,
            State::Challenging(_)
            | State::Challenged(_)
            | State::Succeeding { .. }
            | State::Judging { .. } => Progress::Going,
            State::Proved => Progress::Proved,
            State::Failed { reason, .. } => Progress::Failed(*reason),
        }
    }

    /// Takes a message of the host. Another transaction may follow a successful one.
    pub fn receive(&mut self, bytes: &[u8]) {
        let Ok((transaction, message)) = Message::decode(bytes) else {
            let known = self.transaction().unwrap_or_default();
            return self.fail(known, Reason::INCORRECT_PAYLOAD);
        };
        let is_known = self.transaction().is_none_or(|known| known == transaction);
        let state = std::mem::replace(&mut self.state, State::Idle);
        let next = match (state, message) {
            // A failed transaction stays failed.
            (failed @ State::Failed { .. }, _) => Ok(failed),
            (_, _) if !is_known => Err(Reason::INCORRECT_MESSAGE),
            (State::Idle | State::Proved, Message::Negotiate { concatenation, hashes, groups }) => {
                self.negotiate(transaction, concatenation, hashes, groups)
            }
            (
                State::Challenged(challenged),
                Message::Reply { response, sequence, challenge, dh_value },
            ) => {
                let challenge = challenge.map(|challenge| (challenge, sequence));
                self.judge(&challenged, response, challenge, dh_value)
            }
            (State::Judging { .. }, Message::Success2) => Ok(State::Proved),
            (_, Message::Failure2(reason)) => {
                Ok(State::Failed { transaction, reason, is_told: true })
            }
            (_, _) => Err(Reason::INCORRECT_MESSAGE),
        };
        match next {
            Ok(state) => self.state = state,
            Err(reason) => self.fail(transaction, reason),
        }
    }

    /// Returns the message for the host to fetch now; [`None`] if there is none.
    pub fn next_message(&mut self) -> Option<Vec<u8>> {
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Challenging(challenging) => {
                let bytes = challenging.message();
                self.state = State::Challenged(challenging);
                Some(bytes)
            }
            State::Succeeding { transaction, message, is_answered } => {
                self.state =
                    if is_answered { State::Judging { transaction } } else { State::Proved };
                Some(message)
            }
            State::Failed { transaction, reason, is_told: false } => {
                self.state = State::Failed { transaction, reason, is_told: true };
                Some(Message::Failure1(reason).encode(transaction))
            }
            other => {
                self.state = other;
                None
            }
        }
    }

    /// Returns the number of the present transaction.
    fn transaction(&self) -> Option<u16> {
        match &self.state {
            State::Idle | State::Proved => None,
            State::Challenging(it) | State::Challenged(it) => Some(it.terms.transaction),
            State::Succeeding { transaction, .. }
            | State::Judging { transaction }
            | State::Failed { transaction, .. } => Some(*transaction),
        }
    }

    fn fail(&mut self, transaction: u16, reason: Reason) {
        if !matches!(self.state, State::Failed { .. }) {
            self.state = State::Failed { transaction, reason, is_told: false };
        }
    }

    fn negotiate(
        &mut self,
        transaction: u16,
        concatenation: u8,
        hashes: &[u8],
        groups: &[u8],
    ) -> Result<State, Reason> {
        self.generated = None;
        if concatenation != self.policy.channel() {
            return Err(Reason::CONCATENATION_MISMATCH);
        }
        let mut ours = self.policy.usable_hashes();
        let hash = ours.find(|hash| hashes.contains(&hash.id())).ok_or(Reason::HASH_UNUSABLE)?;
        let mut ours = self.policy.usable_groups();
        let group =
            ours.find(|group| groups.contains(&group.id())).ok_or(Reason::GROUP_UNUSABLE)?;
        Ok(State::Challenging(Box::new(Transaction {
            terms: Terms { names: self.names.clone(), transaction, hash, channel: concatenation },
            group,
            exchange: group.begin(),
            challenge: challenge(hash),
            sequence: sequence(),
        })))
    }

    /// Checks the host's response, and makes the controller's if the host demands one.
    fn judge(
        &mut self,
        challenged: &Transaction,
        response: &[u8],
        demand: Option<(&[u8], u32)>,
        dh_value: &[u8],
    ) -> Result<State, Reason> {
        let Transaction { terms, exchange, challenge, sequence, .. } = challenged;
        if response.len() != terms.hash.bytes() {
            return Err(Reason::HASH_UNUSABLE);
        }
        let shared = match exchange {
            Some(exchange) => Some(exchange.shared(dh_value).ok_or(Reason::GROUP_UNUSABLE)?),
            None if dh_value.is_empty() => None,
            None => return Err(Reason::INCORRECT_PAYLOAD),
        };
        let shared = shared.as_ref().map(|shared| shared.as_slice());
        let expected = terms.response(Side::Host, &self.keys.host, (challenge, *sequence), shared);
        if !bool::from(expected.ct_eq(response)) {
            return Err(Reason::FAILED);
        }
        // The host returned the controller's own challenge: a correct host does not do that.
        if demand.is_some_and(|(c2, _)| c2 == challenge.as_slice()) {
            return Err(Reason::FAILED);
        }
        let mut demand = demand;
        if self.policy.concatenation {
            let (c2, s2) = demand.ok_or(Reason::FAILED)?;
            self.generated = terms.generated(shared, c2, challenge).map(Box::new);
            // Without a sequence number the challenge was for the key only.
            demand = demand.filter(|_| s2 != 0);
        }
        let proof = match (demand, &self.keys.controller) {
            (None, _) => None,
            (Some(_), None) | (Some((_, 0)), _) => return Err(Reason::FAILED),
            (Some(demand), Some(key)) => {
                Some(terms.response(Side::Controller, key, demand, shared))
            }
        };
        let success = Message::Success1 {
            hash_bytes: terms.hash.bytes() as u8,
            response: proof.as_ref().map(|proof| proof.as_slice()),
        };
        let transaction = terms.transaction;
        let (message, is_answered) = (success.encode(transaction), proof.is_some());
        Ok(State::Succeeding { transaction, message, is_answered })
    }
}

impl Transaction {
    fn message(&self) -> Vec<u8> {
        let message = Message::Challenge {
            hash: self.terms.hash.id(),
            group: self.group.id(),
            sequence: self.sequence,
            challenge: &self.challenge,
            dh_value: self.exchange.as_ref().map_or(&[], Exchange::value),
        };
        message.encode(self.terms.transaction)
    }
}
