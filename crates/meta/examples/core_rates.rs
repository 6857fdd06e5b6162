//! Rates of the transaction core alone, on the embedded store: an upper bound for the metadata
//! service. Usage: `cargo run --release --example core_rates [DIRECTORY]`.
//!
//! Calls are committed in groups, as the service does with the calls of one loop turn.

use meta::store::{FjallStore, Opening};
use meta::tree::{Boot, Context, Core};
use protocol::client::{Answer, Call, ChangeCall, Creation, OpenTold, ReadCall, Response, Slot};
use protocol::space::{BlockRange, DeviceAddress, DeviceInfo, NewAllocation, Transport};
use protocol::{
    AllocationId, DeviceId, Extent, ExtentList, Generation, HostId, Incarnation, InodeId, Place,
    Rights, SessionId, Timestamp,
};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Instant;
use uuid::Uuid;

/// Number of new files.
const FILES: u64 = 40_000;

/// Commits of 22 strided records each.
const COMMITS: u64 = 20_000;

/// Bytes of a record; 22 of them fill an allocation of 1 MiB.
const RECORD_BYTES: u32 = 47_008;

const RECORDS: u32 = 22;

/// Block size of the device, in bytes.
const BLOCK_BYTES: u32 = 4096;

struct Bench {
    core: Core,
    session: SessionId,
    sequence: u64,
    group: usize,
    in_group: usize,
    free: Vec<BlockRange>,
}

impl Bench {
    /// Processes one call as the service does: slot, conflicts, execution, reply; a flush per
    /// group.
    fn call(&mut self, call: &Call) -> Result<Answer, Box<dyn Error>> {
        let slot = Slot { slot: (self.in_group % 256) as u16, sequence: self.sequence };
        if call.changes() {
            let _ = self.core.check_slot(self.session, slot);
        }
        self.core.conflicts(self.session, call)?;
        let openers = |_: InodeId| Vec::new();
        let now = Timestamp(1);
        let context = Context { session: self.session, now, openers: &openers };
        let outcome = self.core.execute(&context, call)?;
        if call.changes() {
            let response = Response {
                result: Ok(outcome.answer.clone()),
                grants: Vec::new(),
                changed: outcome.changed,
            };
            self.core.record_reply(self.session, slot, &response)?;
            self.in_group += 1;
            if self.in_group == self.group {
                self.in_group = 0;
                self.sequence += 1;
                self.core.flush()?;
            }
        }
        Ok(outcome.answer)
    }

    fn create(&mut self, parent: InodeId, name: String) -> Result<InodeId, Box<dyn Error>> {
        let call = Call::Change(ChangeCall::Create {
            parent,
            name: name.into_bytes(),
            creation: Creation::File,
            mode: 0o644,
            uid: 0,
            gid: 0,
            rights: Rights::NONE,
        });
        match self.call(&call)? {
            Answer::Entry(attr) => Ok(attr.inode),
            other => Err(format!("{other:?}").into()),
        }
    }

    fn take(&mut self, blocks: u64) -> Result<AllocationId, Box<dyn Error>> {
        let device = DeviceId(0);
        if self.free.last().is_none_or(|range| range.count < blocks) {
            match self
                .call(&Call::Change(ChangeCall::LeaseSpace { device, wanted_bytes: 64 << 20 }))?
            {
                Answer::Space(grant) => self.free = grant.free,
                other => return Err(format!("{other:?}").into()),
            }
        }
        let range = self.free.last_mut().ok_or("no range")?;
        let block = range.start;
        range.start += blocks;
        range.count -= blocks;
        Ok(AllocationId { device, block })
    }

    fn commit(&mut self, inode: InodeId, first: u64, step: u64) -> Result<(), Box<dyn Error>> {
        let blocks = (RECORDS * RECORD_BYTES).div_ceil(BLOCK_BYTES);
        let allocation = self.take(u64::from(blocks))?;
        let extents = (0..RECORDS).map(|i| Extent {
            offset: first + u64::from(i) * step,
            length: RECORD_BYTES,
            place: Place { allocation, at: i * RECORD_BYTES },
        });
        let call = Call::Change(ChangeCall::Commit {
            sums: protocol::sums::Sums::default(),
            inode,
            generation: Generation(0),
            allocations: vec![NewAllocation {
                allocation,
                blocks,
                incarnation: Incarnation(1),
                is_flushed: false,
            }],
            extents: ExtentList(extents.collect()),
            mtime: Some(Timestamp(2)),
            kill_privileges: false,
            inline: Vec::new(),
            attributes: None,
            durable: false,
        });
        self.call(&call).map(|_| ())
    }
}

fn report(what: &str, count: u64, since: Instant) {
    let seconds = since.elapsed().as_secs_f64();
    let rate = count as f64 / seconds;
    println!("{what:<48} {rate:>10.0} /s  {:>7.2} us each", 1e6 / rate);
}

fn device() -> DeviceInfo {
    DeviceInfo {
        device: DeviceId(0),
        uuid: Uuid::from_u128(9),
        node: "node".to_owned(),
        address: DeviceAddress {
            traddr: String::new(),
            subnqn: String::new(),
            nsid: 1,
            transport: Transport::Tcp,
        },
        block_size: BLOCK_BYTES,
        blocks: 1 << 28,
        incarnation: Incarnation(1),
        is_volatile: false,
        online: true,
    }
}

fn run(directory: &Path) -> Result<(), Box<dyn Error>> {
    let boot = Boot {
        boot: Uuid::from_u128(1),
        file_system: Uuid::from_u128(2),
        now: Timestamp(0),
        root: (0o755, 0, 0),
    };
    let begin = Instant::now();
    let (core, _) = Core::open(Box::new(FjallStore::open(directory, Opening::here()?)?), &boot)?;
    println!("open, new: {:.1} ms", begin.elapsed().as_secs_f64() * 1e3);
    let mut bench =
        Bench { core, session: SessionId(0), sequence: 1, group: 1, in_group: 0, free: Vec::new() };
    let device = bench.core.register_device(&device())?;
    bench.core.set_online(device, true);
    bench.session = bench.core.create_session("node", HostId([0; 16]))?.0;
    rates(&mut bench)?;
    drop(bench);
    let begin = Instant::now();
    let store = FjallStore::open(directory, Opening::here()?)?;
    let opened = begin.elapsed().as_secs_f64() * 1e3;
    let (core, _) = Core::open(Box::new(store), &boot)?;
    let loaded = begin.elapsed().as_secs_f64() * 1e3;
    println!("open, after that: {loaded:.1} ms, {opened:.1} ms of it in the store");
    let problems = core.check()?;
    println!("check: {} problems {:?}", problems.len(), problems.first());
    Ok(())
}

fn rates(bench: &mut Bench) -> Result<(), Box<dyn Error>> {
    for group in [1, 32] {
        bench.group = group;
        let begin = Instant::now();
        for i in 0..FILES {
            bench.create(InodeId::ROOT, format!("file-{group}-{i:08}"))?;
        }
        report(&format!("creates, {group} per commit"), FILES, begin);
    }
    let begin = Instant::now();
    for i in 0..FILES {
        let i = i * 7919 % FILES;
        let name = format!("file-32-{i:08}").into_bytes();
        bench.call(&Call::Read(ReadCall::Lookup { parent: InodeId::ROOT, name }))?;
    }
    report("lookups, random, all there", FILES, begin);
    let begin = Instant::now();
    for i in 0..FILES {
        let name = format!("absent-{i:08}").into_bytes();
        bench.call(&Call::Read(ReadCall::Lookup { parent: InodeId::ROOT, name }))?;
    }
    report("lookups, none there", FILES, begin);
    let begin = Instant::now();
    for i in 0..FILES {
        bench.call(&Call::Read(ReadCall::GetAttr(InodeId(2 + i))))?;
    }
    report("getattrs", FILES, begin);
    let (begin, mut after, mut count) = (Instant::now(), 0, 0);
    loop {
        let call = Call::Read(ReadCall::ReadDir { inode: InodeId::ROOT, after, count_max: 512 });
        let Answer::Entries { entries, end } = bench.call(&call)? else { return Ok(()) };
        count += entries.len() as u64;
        after = entries.last().map_or(after, |entry| entry.cookie);
        if end {
            break;
        }
    }
    report("entries listed with attributes", count, begin);
    data_rates(bench)
}

fn data_rates(bench: &mut Bench) -> Result<(), Box<dyn Error>> {
    let stride = u64::from(RECORD_BYTES) * 2;
    for group in [1, 32] {
        bench.group = group;
        let inode = bench.create(InodeId::ROOT, format!("strided-{group}"))?;
        let begin = Instant::now();
        for i in 0..COMMITS {
            bench.commit(inode, i * u64::from(RECORDS) * stride, stride)?;
        }
        report(&format!("commits of 22 strided records, {group} per commit"), COMMITS, begin);
        let begin = Instant::now();
        for i in 0..COMMITS {
            let offset = i * 7919 % COMMITS * u64::from(RECORDS) * stride;
            bench.call(&Call::Read(ReadCall::ReadExtents { inode, offset, length: 1 << 20 }))?;
        }
        report("reads of extents, random", COMMITS, begin);
    }
    let inode = bench.create(InodeId::ROOT, "interleaved".to_owned())?;
    let begin = Instant::now();
    for i in 0..COMMITS {
        // Two writers, far apart from each other, with their records in turn.
        let first = i / 2 * u64::from(RECORDS) * stride + i % 2 * u64::from(RECORD_BYTES);
        bench.commit(inode, first, stride)?;
    }
    report("commits of 22 records, two writers interleaved", COMMITS, begin);
    let begin = Instant::now();
    for i in 0..FILES {
        let name = format!("file-32-{i:08}").into_bytes();
        bench.call(&Call::Change(ChangeCall::Unlink {
            parent: InodeId::ROOT,
            name,
            told: OpenTold::OfAny,
        }))?;
    }
    report("unlinks, 32 per commit", FILES, begin);
    for name in ["strided-1", "strided-32", "interleaved"] {
        bench.call(&Call::Change(ChangeCall::Unlink {
            parent: InodeId::ROOT,
            name: name.as_bytes().to_vec(),
            told: OpenTold::OfAny,
        }))?;
    }
    let begin = Instant::now();
    let mut steps = 0;
    bench.core.ended_through(bench.session, protocol::FreeEpoch(u64::MAX));
    bench.core.sync()?;
    while bench.core.reclaim_step(1000)? {
        bench.core.sync()?;
        bench.core.ended_through(bench.session, protocol::FreeEpoch(u64::MAX));
        steps += 1;
    }
    report("steps of 1000 records to reclaim all that", steps, begin);
    bench.core.flush()?;
    let begin = Instant::now();
    bench.core.syncer().sync()?;
    println!("sync: {:.1} ms", begin.elapsed().as_secs_f64() * 1e3);
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let directory = std::env::args_os().nth(1).map_or_else(
        || std::env::temp_dir().join(format!("core-rates-{}", std::process::id())),
        PathBuf::from,
    );
    run(&directory)?;
    std::fs::remove_dir_all(&directory)?;
    Ok(())
}
