//! A host that connects again and repeats its writes: the first copies must not reach the device
//! last.

use crate::basics::{pair, pattern, rw};
use crate::client::{Client, HostIdentity, Transfer};
use crate::server::{BLOCK, SIZE, TestServer};
use block::{Backing, Fault, FaultPlan, MemoryBacking};
use nvme::opcode::NvmOpcode;
use reactor::{Config, Runtime};
use std::sync::Arc;
use std::time::Duration;
use target::{AdmissionMode, Limits};

const WRITES: u64 = 32;
const DELAY_MAX: Duration = Duration::from_millis(400);

fn block_on<F: Future>(future: F) -> F::Output {
    Runtime::new(&Config::default()).unwrap().block_on(future)
}

/// Makes a host begin slow writes, and then write the same blocks again over new connections, where
/// writes are fast. `leave` is the test's action on the first connections. Returns the blocks that
/// finally do not contain the last written data.
fn repeat_writes(
    mode: AdmissionMode,
    cores: usize,
    leave: impl FnOnce(&TestServer, (Client, Client)) -> Vec<Client>,
) -> Vec<u64> {
    let memory = Arc::new(MemoryBacking::new(SIZE, BLOCK).unwrap());
    let plan = FaultPlan { delay_ppm: 1_000_000, delay_max: DELAY_MAX, ..FaultPlan::default() };
    let slow = Fault::new(Arc::clone(&memory) as Arc<dyn Backing>, 1, plan);
    let server = TestServer::with_backing(Limits::default(), mode, cores, Arc::new(slow.clone()));
    let identity = HostIdentity::number(1);
    let until = server.target.admissions().now() + Duration::from_mins(1);
    block_on(server.target.admissions().admit(identity.host, 1, until)).unwrap();
    let (admin, mut io) = pair(&server, &identity);
    for lba in 0..WRITES {
        io.submit(rw(NvmOpcode::WRITE, lba, 1), Some((Transfer::InCapsule, &pattern(1, 1))), 0);
    }
    while slow.counts().delays < WRITES {
        std::thread::sleep(Duration::from_millis(1));
    }
    slow.set_plan(FaultPlan::default());
    let kept = leave(&server, (admin, io));
    let (_admin, mut io) = pair(&server, &identity);
    for lba in 0..WRITES {
        let data = pattern(2, 1);
        let write = rw(NvmOpcode::WRITE, lba, 1);
        assert!(io.command(write, Some((Transfer::InCapsule, &data)), 0).0.status().is_success());
    }
    std::thread::sleep(DELAY_MAX);
    for mut old in kept {
        assert!(old.wait_closed(Duration::from_secs(10)), "the new controller ends the old");
    }
    server.stop();
    let read = |lba: u64| memory.attach().read(lba * u64::from(BLOCK), BLOCK as usize);
    let is_old = |lba: &u64| block_on(read(*lba)).unwrap().to_bytes() != pattern(2, 1);
    (0..WRITES).filter(is_old).collect()
}

/// The host has abandoned its connections, and the target cannot know that. A new controller ends
/// the old one, and is accepted when nothing of the old one is in flight.
#[test]
fn a_repeated_write_lands_after_a_given_up_one() {
    for cores in [1, 2] {
        let keep = |_: &TestServer, (admin, io)| vec![admin, io];
        let late = repeat_writes(AdmissionMode::Controlled, cores, keep);
        assert_eq!(late, [], "first copies reached the device after the second ones");
    }
}

/// The target has seen the connections end, and waits for their I/O in every mode of admission.
#[test]
fn a_repeated_write_lands_after_one_of_an_ended_connection() {
    for mode in [AdmissionMode::AnyHost, AdmissionMode::Controlled] {
        let late = repeat_writes(mode, 1, |server, connections| {
            drop(connections);
            while !server.target.controllers().is_empty() {
                std::thread::sleep(Duration::from_millis(1));
            }
            Vec::new()
        });
        assert_eq!(late, [], "first copies reached the device after the second ones");
    }
}

/// One name for each namespace: controllers of one host under different names coexist. If
/// admissions are not controlled, those under one name coexist too.
#[test]
fn other_controllers_of_a_host_go_on() {
    let read = |io: &mut Client| io.command(rw(NvmOpcode::READ, 0, 1), None, BLOCK).0.status();
    for mode in [AdmissionMode::AnyHost, AdmissionMode::Controlled] {
        let server = TestServer::with(Limits::default(), mode.clone(), 1);
        let one = HostIdentity::number(1);
        let until = server.target.admissions().now() + Duration::from_mins(1);
        block_on(server.target.admissions().admit(one.host, 1, until)).unwrap();
        let name = if mode == AdmissionMode::Controlled {
            HostIdentity::number(2).name
        } else {
            one.name.clone()
        };
        let two = HostIdentity { host: one.host, name };
        let (_first, mut io) = pair(&server, &one);
        let (_second, mut other) = pair(&server, &two);
        assert!(read(&mut io).is_success() && read(&mut other).is_success());
        server.stop();
    }
}
