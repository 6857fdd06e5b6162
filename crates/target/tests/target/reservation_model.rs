//! Random commands of several hosts against a model of reservations.

use crate::basics::rw;
use crate::reservation_hosts::Host;
use crate::server::{BLOCK, SIZE, TestServer};
use block::MemoryBacking;
use nvme::command::{AcquireAction, RegisterAction, ReservationRelease};
use nvme::opcode::NvmOpcode;
use nvme::reservation::ReservationType::{
    self, ExclusiveAccess, ExclusiveAccessAllRegistrants, ExclusiveAccessRegistrantsOnly,
    WriteExclusive, WriteExclusiveAllRegistrants, WriteExclusiveRegistrantsOnly,
};
use nvme::{Nsid, Status, SubmissionQueueEntry};
use proptest::prelude::*;
use std::sync::Arc;
use target::Reservations;

const HOSTS: usize = 3;

/// Whether a host may read, and whether it may write.
type Allowed = (bool, bool);

/// Base figure 672: the type, then whether a host that does not hold the reservation may read and
/// write, first for a host that is not a registrant, then for a registrant.
const CONFLICTS: [(ReservationType, Allowed, Allowed); 6] = [
    (WriteExclusive, (true, false), (true, false)),
    (ExclusiveAccess, (false, false), (false, false)),
    (WriteExclusiveRegistrantsOnly, (true, false), (true, true)),
    (ExclusiveAccessRegistrantsOnly, (false, false), (true, true)),
    (WriteExclusiveAllRegistrants, (true, false), (true, true)),
    (ExclusiveAccessAllRegistrants, (false, false), (true, true)),
];

#[derive(Clone, Copy, Debug)]
enum Step {
    Register { key: u64, ignores: bool },
    Unregister { key: u64, ignores: bool },
    Replace { key: u64, new: u64, ignores: bool },
    Acquire { key: u64, kind: ReservationType },
    Preempt { key: u64, victims: u64, kind: ReservationType, is_abort: bool },
    Release { key: u64, kind: ReservationType },
    Clear { key: u64 },
    Read,
    Write,
    Zero,
    Flush,
}

fn step() -> impl Strategy<Value = Step> {
    let key = || 1..=2_u64;
    let kind = || proptest::sample::select(ReservationType::ALL.to_vec());
    prop_oneof![
        6 => (key(), any::<bool>()).prop_map(|(key, ignores)| Step::Register { key, ignores }),
        1 => (key(), any::<bool>()).prop_map(|(key, ignores)| Step::Unregister { key, ignores }),
        2 => (key(), key(), any::<bool>())
            .prop_map(|(key, new, ignores)| Step::Replace { key, new, ignores }),
        5 => (key(), kind()).prop_map(|(key, kind)| Step::Acquire { key, kind }),
        5 => (key(), 0..=2_u64, kind(), any::<bool>()).prop_map(
            |(key, victims, kind, is_abort)| Step::Preempt { key, victims, kind, is_abort }
        ),
        2 => (key(), kind()).prop_map(|(key, kind)| Step::Release { key, kind }),
        1 => key().prop_map(|key| Step::Clear { key }),
        3 => Just(Step::Read),
        3 => Just(Step::Write),
        1 => Just(Step::Zero),
        1 => Just(Step::Flush),
    ]
}

/// The rules of the specification, as simple as possible.
#[derive(Clone, Debug, Default)]
struct Model {
    keys: [Option<u64>; HOSTS],
    held: Option<(ReservationType, usize)>,
    generation: u32,
}

impl Model {
    fn is_all(&self) -> bool {
        self.held.is_some_and(|(kind, _)| {
            kind == WriteExclusiveAllRegistrants || kind == ExclusiveAccessAllRegistrants
        })
    }

    fn holds(&self, host: usize) -> bool {
        match self.held {
            None => false,
            Some(_) if self.is_all() => self.keys[host].is_some(),
            Some((_, holder)) => holder == host,
        }
    }

    fn may(&self, host: usize, is_write: bool) -> bool {
        let Some((kind, _)) = self.held else { return true };
        let (_, stranger, registrant) = CONFLICTS.into_iter().find(|(it, ..)| *it == kind).unwrap();
        let (read, write) = if self.keys[host].is_some() { registrant } else { stranger };
        self.holds(host) || if is_write { write } else { read }
    }

    fn remove(&mut self, host: usize) {
        let was_all = self.is_all();
        self.keys[host] = None;
        let has_holder = if was_all {
            self.keys.iter().any(Option::is_some)
        } else {
            self.held.is_some_and(|(_, holder)| holder != host)
        };
        if !has_holder {
            self.held = None;
        }
    }

    fn preempt(&mut self, host: usize, victims: u64, kind: ReservationType) -> Status {
        let of_key = |keys: &[Option<u64>; HOSTS], other: usize| keys[other] == Some(victims);
        let holder_key = self.held.and_then(|(_, holder)| self.keys[holder]);
        let takes_over = if self.is_all() { victims == 0 } else { holder_key == Some(victims) };
        if self.held.is_some() && takes_over {
            let is_all = self.is_all();
            for other in (0..HOSTS).filter(|&other| other != host) {
                if is_all || of_key(&self.keys, other) {
                    self.keys[other] = None;
                }
            }
            self.held = Some((kind, host));
            return Status::SUCCESS;
        }
        if self.held.is_some() && victims == 0 {
            return Status::INVALID_FIELD;
        }
        let found: Vec<usize> = (0..HOSTS).filter(|&it| of_key(&self.keys, it)).collect();
        for &other in &found {
            self.remove(other);
        }
        if found.is_empty() { Status::RESERVATION_CONFLICT } else { Status::SUCCESS }
    }

    fn apply(&mut self, host: usize, step: Step) -> Status {
        let conflict = Status::RESERVATION_CONFLICT;
        let own = self.keys[host];
        let mut counts = true;
        match step {
            Step::Register { key, .. } if own.is_none_or(|own| own == key) => {
                self.keys[host] = Some(key);
            }
            Step::Unregister { key, ignores } if own.is_some_and(|own| ignores || own == key) => {
                self.remove(host);
            }
            Step::Replace { key, new, ignores } if ignores || own == Some(key) => {
                self.keys[host] = Some(new);
            }
            Step::Preempt { key, victims, kind, .. } if own == Some(key) => {
                let status = self.preempt(host, victims, kind);
                if !status.is_success() {
                    return status;
                }
            }
            Step::Clear { key } if own == Some(key) => {
                (self.keys, self.held) = ([None; HOSTS], None);
            }
            Step::Acquire { key, kind } if own == Some(key) => {
                counts = false;
                match self.held {
                    None => self.held = Some((kind, host)),
                    Some((present, _)) if present == kind && self.holds(host) => {}
                    Some(_) => return conflict,
                }
            }
            Step::Release { key, kind } if own == Some(key) => {
                counts = false;
                if self.holds(host) {
                    if self.held.is_some_and(|(present, _)| present != kind) {
                        return Status::INVALID_FIELD;
                    }
                    self.held = None;
                }
            }
            Step::Read if self.may(host, false) => counts = false,
            Step::Write | Step::Zero | Step::Flush if self.may(host, true) => counts = false,
            _ => return conflict,
        }
        self.generation += u32::from(counts);
        Status::SUCCESS
    }
}

fn carry_out(host: &mut Host, step: Step) -> Status {
    match step {
        Step::Register { key, ignores } => {
            host.change((RegisterAction::Register, ignores, None), 0, key)
        }
        Step::Unregister { key, ignores } => {
            host.change((RegisterAction::Unregister, ignores, None), key, 0)
        }
        Step::Replace { key, new, ignores } => {
            host.change((RegisterAction::Replace, ignores, None), key, new)
        }
        Step::Acquire { key, kind } => host.acquire(AcquireAction::Acquire, key, 0, kind),
        Step::Preempt { key, victims, kind, is_abort } => {
            let action =
                if is_abort { AcquireAction::PreemptAndAbort } else { AcquireAction::Preempt };
            host.acquire(action, key, victims, kind)
        }
        Step::Release { key, kind } => host.release(ReservationRelease::Release(kind), key),
        Step::Clear { key } => host.release(ReservationRelease::Clear, key),
        Step::Read => host.read().err().unwrap_or(Status::SUCCESS),
        Step::Write => host.write(1),
        Step::Zero => host.io.command(rw(NvmOpcode::WRITE_ZEROES, 0, 1), None, 0).0.status(),
        Step::Flush => host.io.command(SubmissionQueueEntry::flush(Nsid(1)), None, 0).0.status(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Goal: for any commands of hosts on two cores, status, reservation, registrants and the
    /// generation match the model.
    #[test]
    fn reservations_are_as_specified(steps in proptest::collection::vec((0..HOSTS, step()), 1..120)) {
        let memory = Arc::new(MemoryBacking::new(SIZE, BLOCK).unwrap());
        let server = TestServer::reservable(2, memory, Reservations::new());
        let mut hosts: Vec<Host> = (1..=HOSTS as u8).map(|it| Host::new(&server, it)).collect();
        let mut model = Model::default();
        for (index, step) in steps {
            let expected = model.apply(index, step);
            let status = carry_out(&mut hosts[index], step);
            prop_assert!(status.is(expected), "{step:?} of {index}: {status}, not {expected}");
            let reader = (index + 1) % HOSTS;
            let (report, entries) = hosts[reader].report();
            prop_assert_eq!(report.generation.get(), model.generation);
            prop_assert_eq!(report.rtype, model.held.map_or(0, |(kind, _)| kind.to_u8()));
            let have: Vec<(u8, u64, bool)> = entries
                .iter()
                .map(|it| (it.hostid[0], it.rkey.get(), it.rcsts == 1))
                .collect();
            let want: Vec<(u8, u64, bool)> = (0..HOSTS)
                .filter_map(|it| Some((it as u8 + 1, model.keys[it]?, model.holds(it))))
                .collect();
            prop_assert_eq!(have, want);
        }
        server.stop();
    }
}
