//! A small load generator: creates, lookups and commits per second over loopback.
//!
//! The service runs on a thread of its own with the embedded store in a temporary directory; all
//! clients share another. Each client has a directory and a session of its own, and keeps a number
//! of calls under way.
//!
//! `meta_load [SECONDS] [DEPTH] [plain]`; calls are inside TLS, or without it with `plain`.

use meta::service::{Config, Service, StoreChoice, Times};
use protocol::auth::Secret;
use protocol::client::{
    Answer, Call, ChangeCall, Creation, Push, PushAnswer, ReadCall, Request, Response, SessionCall,
    Slot,
};
use protocol::lease::Recalled;
use protocol::space::{DeviceAddress, DeviceInfo, NewAllocation, SpaceGrant, Transport};
use protocol::{
    AllocationId, Attr, DeviceId, Extent, ExtentList, FreeEpoch, HostId, Incarnation, InodeId,
    Place, Rights, agent,
};
use reactor::SocketOptions;
use reactor::time::{Instant, now};
use rpc::{
    Agent, Client, Connection, Connector, Credential, Guard, Handler, Limits, Reply, RpcError,
};
use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::mpsc;
use std::time::Duration;
use tls::{Holder, JobKey};

const SECRET: Secret = Secret([7; 32]);

type Failure = Box<dyn std::error::Error>;

struct Obliging;

impl Handler<Connector<Client>> for Obliging {
    fn called(&self, push: Push, reply: Reply<Connector<Client>>) {
        let answer = match push {
            Push::Recall(recall) => {
                PushAnswer::Recalled(Recalled { inode: recall.inode, kept: Rights::NONE })
            }
            Push::Reclaim { free_epoch } => PushAnswer::Ended(free_epoch),
            _ => PushAnswer::Done,
        };
        drop(reply.send(&answer));
    }
}

struct ObligingAgent;

impl Handler<Connector<Agent>> for ObligingAgent {
    fn called(&self, push: agent::Push, reply: Reply<Connector<Agent>>) {
        let answer = match push {
            agent::Push::Fence { .. } => agent::PushAnswer::Fenced,
            _ => agent::PushAnswer::Done,
        };
        drop(reply.send(&answer));
    }
}

/// A client with its directory and slots.
struct Load {
    connection: Connection<Connector<Client>>,
    directory: InodeId,
    sequences: RefCell<[u64; 256]>,
    /// Files created so far, by number.
    files: RefCell<Vec<Attr>>,
    /// Blocks that commits may name.
    blocks: RefCell<Vec<(AllocationId, Incarnation)>>,
}

fn done(response: Result<Response, RpcError>) -> Result<Answer, Failure> {
    Ok(response?.result?)
}

impl Load {
    async fn start(
        address: SocketAddr,
        credential: &Credential,
        number: u64,
    ) -> Result<Rc<Load>, Failure> {
        let options = SocketOptions::default();
        let handler = Rc::new(Obliging);
        let connection: Connection<Connector<Client>> =
            Connection::connect(address, &options, credential, Limits::default(), handler).await?;
        let mut host = [0; 16];
        reactor::random::fill(&mut host);
        let call = Call::Session(SessionCall::Start {
            node: "load".into(),
            host: HostId(host),
            resume: None,
        });
        done(connection.call(&Request { slot: None, call }, None).await)?;
        let mut load = Load {
            connection,
            directory: InodeId::ROOT,
            sequences: RefCell::new([0; 256]),
            files: RefCell::default(),
            blocks: RefCell::default(),
        };
        let name = format!("client{number}-{}", HostId(host));
        let Answer::Entry(attr) = load.call(0, load.create(name, Creation::Directory)).await?
        else {
            return Err("a create was answered by something else".into());
        };
        load.directory = attr.inode;
        let beats = load.connection.clone();
        reactor::spawn(async move {
            let call = Call::Session(SessionCall::Heartbeat {
                ended_through: FreeEpoch(0),
                working_on: Vec::new(),
            });
            let request = Request { slot: None, call };
            while beats.call(&request, None).await.is_ok() {
                reactor::time::sleep(Duration::from_secs(2)).await;
            }
        });
        Ok(Rc::new(load))
    }

    fn create(&self, name: String, creation: Creation) -> Call {
        let (parent, name, rights) = (self.directory, name.into_bytes(), Rights::NONE);
        Call::Change(ChangeCall::Create {
            parent,
            name,
            creation,
            mode: 0o755,
            uid: 0,
            gid: 0,
            rights,
        })
    }

    /// Sends a call in a slot that has no other call under way.
    async fn call(&self, slot: u16, call: Call) -> Result<Answer, Failure> {
        let slot = call.changes().then(|| {
            let sequence = &mut self.sequences.borrow_mut()[usize::from(slot)];
            *sequence += 1;
            Slot { slot, sequence: *sequence }
        });
        done(self.connection.call(&Request { slot, call }, None).await)
    }

    async fn make_file(&self, slot: u16, number: u64) -> Result<(), Failure> {
        let call = self.create(format!("file{number:08}"), Creation::File);
        if let Answer::Entry(attr) = self.call(slot, call).await? {
            self.files.borrow_mut().push(attr);
        }
        Ok(())
    }

    async fn look_up(&self, slot: u16, number: u64) -> Result<(), Failure> {
        let number = number % self.files.borrow().len().max(1) as u64;
        let name = format!("file{number:08}").into_bytes();
        self.call(slot, Call::Read(ReadCall::Lookup { parent: self.directory, name }))
            .await
            .map(drop)
    }

    async fn take_block(&self, slot: u16) -> Result<(AllocationId, Incarnation), Failure> {
        loop {
            if let Some(block) = self.blocks.borrow_mut().pop() {
                return Ok(block);
            }
            let call =
                Call::Change(ChangeCall::LeaseSpace { device: DeviceId(0), wanted_bytes: 1 << 20 });
            let Answer::Space(SpaceGrant { device, incarnation, free }) =
                self.call(slot, call).await?
            else {
                return Err("a lease was answered by something else".into());
            };
            let blocks = free.iter().flat_map(|range| range.start..range.end());
            let named = blocks.map(|block| (AllocationId { device, block }, incarnation));
            self.blocks.borrow_mut().extend(named);
        }
    }

    /// Commits one block to one of the files, each commit to another.
    async fn commit(&self, slot: u16, number: u64) -> Result<(), Failure> {
        let (allocation, incarnation) = self.take_block(slot).await?;
        let file = {
            let files = self.files.borrow();
            files[number as usize % files.len()]
        };
        let place = Place { allocation, at: 0 };
        let offset = number / self.files.borrow().len() as u64 * 4096;
        let call = Call::Change(ChangeCall::Commit {
            sums: protocol::sums::Sums::default(),
            inode: file.inode,
            generation: file.generation,
            allocations: vec![NewAllocation {
                allocation,
                blocks: 1,
                incarnation,
                is_flushed: false,
            }],
            extents: ExtentList(vec![Extent { offset, length: 4096, place }]),
            mtime: None,
            kill_privileges: false,
            inline: Vec::new(),
            attributes: None,
            durable: false,
        });
        self.call(slot, call).await.map(drop)
    }

    async fn step(&self, kind: &str, slot: u16, number: u64) -> Result<(), Failure> {
        match kind {
            "creates" => self.make_file(slot, number).await,
            "lookups" => self.look_up(slot, number).await,
            _ => self.commit(slot, number).await,
        }
    }
}

/// Runs one kind of call from all clients until the end; returns the number of answers.
async fn measure(
    clients: &[Rc<Load>],
    kind: &'static str,
    depth: u16,
    end: Instant,
) -> Result<u64, Failure> {
    let count = Rc::new(Cell::new(0));
    let mut tasks = Vec::new();
    for client in clients {
        let number = Rc::new(Cell::new(0));
        for slot in 0..depth {
            let (client, number, count) =
                (Rc::clone(client), Rc::clone(&number), Rc::clone(&count));
            tasks.push(reactor::spawn(async move {
                while now() < end {
                    let mine = number.replace(number.get() + 1);
                    client.step(kind, slot, mine).await?;
                    count.set(count.get() + 1);
                }
                Ok::<(), Failure>(())
            }));
        }
    }
    for task in tasks {
        task.await??;
    }
    Ok(count.get())
}

async fn register_device(
    address: SocketAddr,
    credential: &Credential,
) -> Result<Connection<Connector<Agent>>, Failure> {
    let options = SocketOptions::default();
    let handler = Rc::new(ObligingAgent);
    let agent: Connection<Connector<Agent>> =
        Connection::connect(address, &options, credential, Limits::default(), handler).await?;
    let device = DeviceInfo {
        device: DeviceId(0),
        uuid: uuid::Uuid::from_u128(1),
        node: String::new(),
        address: DeviceAddress {
            traddr: "127.0.0.1:4420".into(),
            subnqn: "nqn.2014-08.org.example:load".into(),
            nsid: 1,
            transport: Transport::Tcp,
        },
        block_size: 4096,
        blocks: 1 << 28,
        incarnation: Incarnation(1),
        is_volatile: false,
        online: true,
    };
    let beat = agent::Beat(reactor::time::now().as_ns());
    let call = agent::Call::Register {
        node: "load".into(),
        devices: vec![device],
        beat,
        demand: agent::Demand::Identifier,
    };
    agent.call(&call, None).await?;
    Ok(agent)
}

async fn load(
    address: SocketAddr,
    credential: Credential,
    seconds: f64,
    depth: u16,
) -> Result<(), Failure> {
    let agent = register_device(address, &credential).await?;
    println!(
        "{:>8} {:>6} {:>10} {:>10} {:>10}",
        "clients", "depth", "creates/s", "lookups/s", "commits/s"
    );
    for (count, depth) in [(1, 1), (1, depth), (2, depth), (8, depth)] {
        let mut clients = Vec::new();
        for number in 0..count {
            clients.push(Load::start(address, &credential, number).await?);
        }
        let mut rates = Vec::new();
        for kind in ["creates", "lookups", "commits"] {
            let begin = now();
            let end = begin + Duration::from_secs_f64(seconds);
            let answered = measure(&clients, kind, depth, end).await?;
            rates.push(answered as f64 / begin.elapsed().as_secs_f64());
        }
        println!("{count:>8} {depth:>6} {:>10.0} {:>10.0} {:>10.0}", rates[0], rates[1], rates[2]);
    }
    agent.close("done");
    Ok(())
}

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let seconds: f64 = arguments.next().map_or(Ok(2.0), |text| text.parse())?;
    let depth: u16 = arguments.next().map_or(Ok(32), |text| text.parse())?;
    let job = JobKey::generate();
    let (guard, credential) = match arguments.next().as_deref() {
        None => {
            let node = job.of(&Holder::Node("load".into()))?;
            (Guard::of_job(&job)?, Credential::Tls(node))
        }
        Some("plain") => (Guard::Plain(SECRET), Credential::Plain(SECRET)),
        Some(other) => return Err(format!("{other} is neither empty nor plain").into()),
    };
    let directory = tempfile::tempdir()?;
    let config = Config {
        listen: "127.0.0.1:0".parse()?,
        network_namespace: None,
        store: StoreChoice::Directory { path: directory.path().to_owned(), accept_loss: false },
        guard,
        data_keys: None,
        root: (0o755, 0, 0),
        boot: None,
        times: Times::default(),
    };
    let (started, address) = mpsc::channel();
    let (stop, mut stopped) = reactor::mailbox::channel::<()>(2);
    let thread = reactor::thread::spawn("meta", &reactor::Config::default(), move || async move {
        let service = Service::start(config).map_err(|error| error.to_string())?;
        started.send(service.address()).map_err(|error| error.to_string())?;
        stopped.recv().await;
        service.stop().await.map_err(|error| error.to_string())
    })?;
    let address = address.recv()?;
    let mut runtime = reactor::Runtime::new(&reactor::Config::default())?;
    runtime.block_on(load(address, credential, seconds, depth.clamp(1, 255)))?;
    drop(stop);
    thread.join()??;
    Ok(())
}
