//! The core of the metadata service on a store in memory.
//!
//! Correct calls change files, which are compared with a model after each kill. Between them come
//! calls that no correct client sends, and they must change nothing. A cluster cannot show such
//! bugs, because its clients are the shipped ones.

mod files;
// The tests of crate `meta` stand on the same core, store and device.
#[path = "../../../meta/tests/common/fixture.rs"]
#[allow(dead_code, clippy::unwrap_used, reason = "tests use the rest")]
pub(super) mod fixture;
mod hostile;
mod rules;

use crate::random::{Random, mix};
use fixture::Fixture;
use meta::store::CrashPoint;
use protocol::InodeId;
use protocol::client::{Answer, Call};
use std::collections::BTreeMap;

/// Most steps of a run.
const STEPS_MAX: u64 = 60;

/// A block of a file: its number on the device, and the sum of its data.
type Block = (u64, u32);

/// A file of the model.
#[derive(Clone, Debug, Default)]
struct File {
    name: String,
    /// The content: blocks at multiples of the block size.
    blocks: BTreeMap<u64, Block>,
    /// Number of blocks up to the end.
    len: u64,
}

/// The core and the model.
struct Service {
    fixture: Fixture,
    random: Random,
    files: BTreeMap<InodeId, File>,
    /// Number of names that were given.
    names: u64,
    /// The last sum that was given.
    sum: u32,
    trace: u64,
}

/// Runs a seed; returns its trace and what is wrong. It panics where an answer is wrong.
pub(super) fn run(seed: u64) -> (u64, Vec<String>) {
    let random = Random::new(seed ^ 0x0073_6572_7669_6365);
    let mut service = Service {
        fixture: Fixture::new(),
        random,
        files: BTreeMap::new(),
        names: 0,
        sum: 0,
        trace: seed,
    };
    for _ in 0..service.random.between(STEPS_MAX / 3, STEPS_MAX) {
        service.step();
    }
    service.compare();
    service.lose_power();
    (service.trace, Vec::new())
}

impl Service {
    fn step(&mut self) {
        match self.random.below(100) {
            0..24 => self.write(),
            24..31 => self.truncate(),
            31..36 => self.copy(),
            36..41 => self.compact(),
            41..47 => self.remove(),
            47..55 => self.kill(),
            55..68 => self.wrong_commit(),
            68..73 => self.wrong_exchange(),
            73..75 => self.lost_exchange(),
            75..79 => self.old_calls(),
            79..82 => self.full_directory(),
            82..86 => self.inline_data(),
            86..89 => self.conflicts(),
            89..92 => self.resting(),
            92..94 => self.long_cut(),
            94..97 => self.kept_back(),
            _ => self.late_opener(),
        }
        self.fixture.check();
    }

    /// Sends a call that must succeed.
    fn call(&mut self, call: &Call) -> Answer {
        let answer = self.fixture.call(call);
        let mixed = format!("{answer:?}")
            .bytes()
            .fold(self.trace, |sum, byte| sum.rotate_left(5) ^ u64::from(byte));
        self.trace = mix(mixed);
        answer.unwrap_or_else(|error| panic!("{call:?} fails: {error:?}"))
    }

    fn new_name(&mut self) -> String {
        self.names += 1;
        format!("f{}", self.names)
    }

    /// Makes an empty file.
    fn make(&mut self) -> InodeId {
        let name = self.new_name();
        let inode = self.fixture.file(&name);
        self.files.insert(inode, File { name, ..File::default() });
        inode
    }

    /// Returns a random file, which may be new.
    fn any_file(&mut self) -> InodeId {
        if self.files.is_empty() || self.files.len() < 5 && self.random.chance(30) {
            return self.make();
        }
        let at = self.random.below(self.files.len() as u64) as usize;
        *self.files.keys().nth(at).expect("a file")
    }

    /// The service is killed and starts again: all that it had answered is there.
    fn kill(&mut self) {
        self.fixture.core.flush().expect("a commit");
        let before = self.fixture.core.stamps_from();
        self.fixture.reopen(CrashPoint::Process);
        let present = self.fixture.core.stamps_from();
        assert!(present > before, "lease stamps begin at {present}, before at {before}");
        let session = self.fixture.core.session(self.fixture.session);
        assert!(session.is_some_and(|it| !it.is_void), "the session did not survive a kill");
        self.compare();
    }

    /// The machine loses power: numbers that the store has forgotten are not given out again.
    fn lose_power(&mut self) {
        self.fixture.core.sync().expect("a sync");
        let lost = self.fixture.file("lost");
        let lost_session = self.fixture.other_session();
        self.fixture.core.flush().expect("a commit");
        self.fixture.store = self.fixture.store.crashed(CrashPoint::Power { kept: 0 });
        let store = Box::new(self.fixture.store.clone());
        let opened = meta::tree::Core::open(store, &fixture::boot(2)).expect("the store opens");
        assert!(opened.1.are_sessions_void, "sessions survive a loss of power");
        self.fixture.core = opened.0;
        let session = self.fixture.core.session(self.fixture.session);
        assert!(session.is_some_and(|it| it.is_void), "a session is not void");
        self.compare();
        let again = self.fixture.file("again");
        assert!(again > lost, "{lost} was given out again");
        let session = self.fixture.other_session();
        assert!(session > lost_session, "session {lost_session:?} was given out again");
        self.fixture.check();
    }
}
