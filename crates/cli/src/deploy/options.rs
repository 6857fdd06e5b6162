//! The options of `tsumugi up`, the plan that they make, and what `up` came to.

use super::data_fabric::{DataFabric, Wanted};
use super::fabric;
use super::job::JobArgs;
use super::plan::{DevicePlan, MetaPlan, NodePlan, Plan};
use super::process::Process;
use super::reach::ReachArgs;
use super::services::ReadyNode;
use super::site::{SIZE_DEFAULT, Site};
use super::size;
use super::slurm::{self, SlurmRun};
use super::users::User;
use crate::engine;
use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;
use tls::{Holder, JobKey};

/// Shortest lease.
const LEASE_MIN: Duration = Duration::from_secs(1);

/// Create a job's file system from its nodes' SSDs.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
    tsumugi up --local 3                                three nodes on this machine
    tsumugi up --nodes node1,node2,node3                three machines, reached by ssh
    tsumugi up --nodes ./hosts.txt --job big            one host per line, see below
    tsumugi up --local 1 --job $SLURM_JOB_ID --owner $SLURM_JOB_USER
                                                        as root for a user, as in a Slurm prolog
    tsumugi up --slurm                                  the nodes of this Slurm job; ends with it
    tsumugi up --local 2 --owner-pid $$                 ends with this shell
    tsumugi up --local 2 --lease 1h                     ends unless `tsumugi renew` runs every hour
    tsumugi up --nodes ./hosts.txt --device '/dev/disk/by-id/nvme-*-part4'
                                                        on each machine the first free device
    tsumugi up --nodes ./hosts.txt --plain-data --fabric auto
                                                        data over RDMA if every node has it

Each line of a file of nodes: HOST [name=NAME] [address=IP] [device=PATH] [mount=DIR] [dir=DIR]
    HOST     its name for ssh
    name     its name in the pool (default: HOST)
    address  at which other nodes reach it (default: that of HOST, or if that is loopback, its own \
    address on its route to the others)
    device   an existing block device or file, a directory for a backing file, or a pattern; `up` \
    refuses a device in use, and without --destroy also one with a file system or the like
    mount    its mount point
    dir      base of the job's directory there
Empty lines and text after a # are ignored.

The metadata service runs on the first node. If `up` fails or is interrupted, it removes what it \
has created. The job starts a process that dies later again at once, unless it dies three times in \
a minute; `tsumugi status` shows the reason. `tsumugi list` shows all jobs of this machine, \
`tsumugi run` creates one for a single command.

Exit codes:
    0    all nodes are ready
    1    failed; undone
    2    wrong usage
    130  stopped by Ctrl-C or a signal; undone")]
pub(crate) struct UpArgs {
    /// Nodes reached by ssh: a file, or names separated by commas
    #[arg(long, value_name = "FILE|HOST,...", required_unless_present_any = ["local", "agent", "slurm"])]
    pub(crate) nodes: Option<String>,
    /// Start N nodes on this machine
    #[arg(long, value_name = "N", conflicts_with = "nodes",
          value_parser = clap::value_parser!(u16).range(1..=fabric::NODES_MAX as i64))]
    pub(crate) local: Option<u16>,
    /// Use the nodes of this Slurm allocation, reached by srun; the job ends with the step
    #[arg(long, conflicts_with_all = ["nodes", "local", "lease", "owner"])]
    pub(crate) slurm: bool,
    #[command(flatten)]
    pub(crate) job: JobArgs,
    /// Bytes of each node's backing file [default: the site's, else 2G]
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    size: Option<u64>,
    /// Directory on the SSD for backing files [default: the site's, else one in /var/tmp]
    #[arg(long, value_name = "DIR", conflicts_with = "memory")]
    device_dir: Option<PathBuf>,
    /// Block device, file or directory for each node's data, or a pattern: each node uses the first
    /// free match; may be repeated
    #[arg(long, value_name = "PATTERN", conflicts_with_all = ["memory", "device_dir"])]
    device: Vec<String>,
    /// Use devices that have a file system, partitions or the like: their content is lost
    #[arg(long)]
    pub(crate) destroy: bool,
    /// Keep the data in memory, with BYTES per node
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    memory: Option<u64>,
    /// Base directory of the mounts: DIR/NODE with --local, DIR itself with --nodes (default: in
    /// the job's directory)
    #[arg(long, value_name = "DIR")]
    mount_base: Option<PathBuf>,
    /// Put each node's sockets into its own network namespace
    #[arg(long, value_enum, default_value_t, value_name = "WHEN",
          num_args = 0..=1, default_missing_value = "always")]
    pub(crate) netns: Netns,
    /// Send data between nodes in the clear: programs on their network can read and change it
    #[arg(long)]
    pub(crate) plain_data: bool,
    /// Fabric that carries data between nodes: RDMA needs --plain-data, and an RDMA device at each node's
    /// address
    #[arg(long, value_enum, default_value_t, value_name = "FABRIC")]
    pub(crate) fabric: Wanted,
    /// Store checksums of data, and compare data with them when it is read
    #[arg(long, value_enum, default_value_t, value_name = "WHETHER")]
    checksum: Checksum,
    /// Has no effect: data between nodes is encrypted
    #[arg(long, hide = true)]
    pub(crate) insecure: bool,
    /// Write backing files once at the start, which makes the first write of each block as fast as
    /// later ones [default: only reserve their space]
    #[arg(long, conflicts_with = "memory")]
    prewrite: bool,
    /// Keep backing files when the job ends
    #[arg(long)]
    keep_devices: bool,
    /// How file system requests travel between kernel and mount
    #[arg(long, value_enum, default_value_t, value_name = "HOW")]
    transport: Transport,
    /// Use FUSE over io_uring, or fail; as root, switch it on for the machine until the job ends
    #[arg(long, conflicts_with = "transport")]
    fuse_uring: bool,
    /// Create the pool for this user only (root only)
    #[arg(long, value_name = "USER")]
    owner: Option<String>,
    /// Take the job down when this process on this machine has ended
    #[arg(long, value_name = "PID", conflicts_with = "lease",
          value_parser = clap::value_parser!(i32).range(1..))]
    pub(crate) owner_pid: Option<i32>,
    /// Take the job down when `tsumugi renew` has not run for TIME
    #[arg(long, value_name = "TIME", value_parser = parse_lease)]
    lease: Option<Duration>,
    /// Take the job down when Slurm reports that this Slurm job has ended or was requeued
    #[arg(long, value_name = "JOB", conflicts_with_all = ["owner_pid", "lease", "slurm"])]
    owner_slurm_job: Option<u32>,
    /// Leave dead processes to `tsumugi restart`
    #[arg(long)]
    no_restart: bool,
    /// Microseconds that the threads of nodes and service spin for work before they sleep, where no other
    /// program needs the CPU: 0 for never, or auto while a spin is cheaper than a wake-up
    #[arg(long, value_name = "N|auto", default_value = "50")]
    poll_us: reactor::Spin,
    /// Give up if nodes are not ready after this time
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = humantime::parse_duration)]
    pub(crate) ready_within: Duration,
    #[command(flatten)]
    pub(crate) reach: ReachArgs,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Carry out orders from standard input as this node; `up` starts this on other machines
    #[arg(long, hide = true, value_name = "NODE", conflicts_with_all = ["nodes", "local"])]
    pub(crate) agent: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Netns {
    /// Where the machine can do it.
    #[default]
    Auto,
    /// Always, or fail.
    Always,
    /// Use loopback ports instead.
    Never,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum Transport {
    /// Use `io_uring` if the kernel has it enabled, else /dev/fuse.
    #[default]
    Auto,
    /// Use /dev/fuse.
    Device,
    /// Use `io_uring`, or fail.
    Uring,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum Checksum {
    /// A read returns the bytes that were written, or EIO.
    #[default]
    On,
    /// No checksums: to measure their cost.
    Off,
}

impl Checksum {
    /// Returns the value for a node's configuration.
    fn name(self) -> &'static str {
        match self {
            Checksum::On => "on",
            Checksum::Off => "off",
        }
    }
}

/// The result of `up`.
pub(crate) struct Outcome {
    /// The nodes.
    pub(crate) nodes: Vec<ReadyNode>,
    /// Time to create backing files.
    pub(crate) prepared: Duration,
    /// Time from then until all nodes were ready.
    pub(crate) ready: Duration,
    /// The fabric that carries data between them.
    pub(crate) data_fabric: DataFabric,
}

impl UpArgs {
    pub(crate) fn has_fabric(&self) -> anyhow::Result<bool> {
        match (self.netns, fabric::obstacle()) {
            (Netns::Never, _) => Ok(false),
            (_, None) => Ok(true),
            (Netns::Always, Some(why)) => bail!("no network namespaces: {why}"),
            (Netns::Auto, Some(why)) => {
                eprintln!("tsumugi: nodes use loopback ports: {why}");
                Ok(false)
            }
        }
    }

    /// Returns the plan of this machine with `count` nodes and the metadata service. `data` is the
    /// address of the nodes' targets, if it is chosen.
    pub(crate) fn plan(
        &self,
        has_fabric: bool,
        count: usize,
        data: Option<IpAddr>,
    ) -> anyhow::Result<Plan> {
        let address = |address: Ipv4Addr, port: u16| {
            if has_fabric { (address, port) } else { (Ipv4Addr::LOCALHOST, 0) }.into()
        };
        let target = |index| match data {
            Some(data) => (data, 0).into(),
            None => address(fabric::node_address(index), fabric::TARGET_PORT),
        };
        let base = self.mount_base()?;
        let job = JobKey::generate();
        let node = |index: usize| {
            let name = format!("node{}", index + 1);
            Ok(NodePlan {
                key: job.of(&Holder::Node(name.clone()))?.to_line().into(),
                listen: target(index),
                mount: base.as_ref().map(|base| base.join(&name)),
                device: self.device(),
                name,
            })
        };
        let meta = MetaPlan { listen: address(fabric::meta_address(), fabric::META_PORT) };
        let nodes = (0..count).map(node).collect::<anyhow::Result<_>>()?;
        let secret = Some(job.to_hex().into());
        Ok(Plan { meta: Some(meta), secret, has_fabric, ..self.bare_plan(nodes)? })
    }

    /// Returns a plan with a new identifier and without metadata service, for nodes in the
    /// machine's own network.
    pub(crate) fn bare_plan(&self, nodes: Vec<NodePlan>) -> anyhow::Result<Plan> {
        Ok(Plan {
            id: format!("{:016x}", reactor::random::u64()),
            secret: None,
            meta: None,
            nodes,
            has_fabric: false,
            device_dir: self.device_dir.as_ref().map(std::path::absolute).transpose()?,
            is_prewritten: self.prewrite,
            keep_devices: self.keep_devices,
            transport: if self.fuse_uring { "uring" } else { self.transport.name() }.into(),
            engine: engine::insisted(),
            poll_us: self.poll_us,
            plain_data: self.plain_data,
            data_fabric: DataFabric::default(),
            checksum: self.checksum.name().into(),
            owner: self.owner()?,
            fuse_uring: self.fuse_uring,
            is_kept: !self.no_restart,
            owner_process: self.owner_process()?,
            lease_seconds: self.lease.map(|lasts| lasts.as_secs()),
            owner_run: self.owner_slurm_job.map(SlurmRun::find).transpose()?,
            slurm_job: slurm::job_here(),
        })
    }

    /// Returns the user that the pool is for, if it is another user.
    fn owner(&self) -> anyhow::Result<Option<User>> {
        let owner = self.owner.as_deref().map(User::find).transpose()?;
        Ok(owner.filter(|owner| !owner.is_current()))
    }

    /// Returns the process that ends the job by its own end.
    fn owner_process(&self) -> anyhow::Result<Option<Process>> {
        let find = |pid| {
            let process = Process::of(pid).ok().filter(Process::is_alive);
            process.with_context(|| format!("--owner-pid: there is no process {pid}"))
        };
        self.owner_pid.map(find).transpose()
    }

    /// Fills in the site's defaults for options that are not given.
    pub(crate) fn with(mut self, site: &Site) -> Self {
        let defaults = &site.defaults;
        self.size = self.size.or(defaults.size);
        self.reach = self.reach.with(defaults);
        self.prewrite |= defaults.prewrite && self.memory.is_none();
        self
    }

    /// Returns the bytes of a backing file.
    pub(crate) fn size(&self) -> u64 {
        self.size.unwrap_or(SIZE_DEFAULT)
    }

    /// Returns the device of a node that has no device of its own in the list of nodes.
    pub(crate) fn device(&self) -> DevicePlan {
        match self.memory {
            Some(size) => DevicePlan::Memory { size },
            None if self.device.is_empty() => DevicePlan::File { size: self.size() },
            None => self.existing(self.device.clone()),
        }
    }

    /// Returns a plan that uses one of these devices.
    pub(crate) fn existing(&self, patterns: Vec<String>) -> DevicePlan {
        DevicePlan::Existing { patterns, size: self.size(), destroy: self.destroy }
    }

    /// Returns the base directory of the mounts.
    pub(crate) fn mount_base(&self) -> anyhow::Result<Option<PathBuf>> {
        Ok(self.mount_base.as_ref().map(std::path::absolute).transpose()?)
    }

    /// Returns a progress bar for the backing files.
    pub(crate) fn bar(&self) -> ProgressBar {
        if self.json { ProgressBar::hidden() } else { preparation() }
    }
}

/// Parses a lease in whole seconds, the resolution of clocks in shells and schedulers.
fn parse_lease(text: &str) -> Result<Duration, String> {
    let lasts = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if lasts < LEASE_MIN {
        return Err(format!("a lease lasts at least {LEASE_MIN:?}"));
    }
    Ok(lasts)
}

impl Transport {
    /// Returns the value for a node's configuration.
    fn name(self) -> &'static str {
        match self {
            Transport::Auto => "auto",
            Transport::Device => "device",
            Transport::Uring => "uring",
        }
    }
}

fn preparation() -> ProgressBar {
    let bar = ProgressBar::new(0);
    let form = "writing backing files once: {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
    if let Ok(style) = ProgressStyle::with_template(form) {
        bar.set_style(style);
    }
    bar
}

/// Sets the bar.
pub(crate) fn show(bar: &ProgressBar, done: u64, all: u64) {
    bar.set_length(all);
    bar.set_position(done);
}
