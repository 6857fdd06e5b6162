//! `tsumugi node`: runs a node's target, agent and mount in one process.
//!
//! The process talks to the network, so it first confines itself to its own backing files. Before
//! that it does what a confined process cannot do: it creates missing files, and starts a helper
//! process that mounts and unmounts (Landlock forbids all changes of mounts).

use crate::confine::Files;
use crate::deploy::life::Held;
use crate::deploy::mounts::{self, Condition};
use crate::observe::server::Listeners;
use crate::signals;
use ::node::{Fabric, Mounter, Node, NodeConfig, Ready, Transport};
use anyhow::{Context, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use rdma::Drivers;
use reactor::Runtime;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long an existing mount at the mount point may take to show whether it is alive.
const LOOK_WITHIN: Duration = Duration::from_secs(2);
/// How long the kernel may take to end the mount of a killed process.
const MOUNT_END_WITHIN: Duration = Duration::from_secs(20);
/// How long to wait at the end for the helper, which has nothing left to do then.
const HELPER_WAIT: Duration = Duration::from_secs(5);

/// Run a node: its target, its agent and its mount.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
    tsumugi node /run/tsumugi/4711/node2.toml

A configuration:
    name = \"node1\"
    meta = \"127.0.0.1:7000\"
    secret = \"/run/tsumugi/job/node1.key\"
    listen = \"127.0.0.1:0\"
    mount = \"/mnt/job\"
    [[device]]
    path = \"/scratch/node1.img\"
    size = \"2G\"            # created and written once if it is missing

Usually `tsumugi up` writes the file and starts the node. To start a killed node again, use \
`tsumugi restart`, or `tsumugi node` with the file in the job's directory.

SIGINT and SIGTERM end the node cleanly: it commits its data, unmounts the file system and stops \
the target. SIGUSR1 prints a line on its state. SIGHUP and SIGUSR2 do nothing.

Exit codes:
    0  ended cleanly
    1  failed; the reason is printed
    2  wrong usage")]
pub(crate) struct NodeArgs {
    /// Configuration file
    #[arg(value_name = "CONFIG.toml")]
    config: PathBuf,
    /// Try to open this file once confined, and print the result: for tests
    #[arg(long, value_name = "FILE", hide = true)]
    try_open: Vec<PathBuf>,
}

/// Mount and unmount for a node.
#[derive(Debug, Args)]
pub(crate) struct MountHelperArgs {
    /// The node's configuration file
    config: PathBuf,
}

/// Runs `tsumugi node`.
pub(crate) fn run(args: &NodeArgs) -> anyhow::Result<ExitCode> {
    // Before anything else: from here on no stray signal ends the process.
    let mut signals = signals::watch_service()?;
    // The umask that the kernel sends with each request applies to files made on the mount.
    crate::confine::keep_files_private();
    crate::confine::keep_out_of_core_files();
    let config = NodeConfig::read(&args.config)?;
    let credential = config.read_credential()?;
    let held = config.pid_file.as_deref().map(Held::take).transpose()?;
    create_devices(&config)?;
    ::node::create_marks(&config)?;
    config.mount.as_deref().map(remove_dead_mount).transpose()?;
    let listeners = listeners(&config)?;
    // Before the confinement, which would bind the helper too, and before anything is open.
    let helper = config.mount.as_ref().map(|_| Helper::start(&args.config)).transpose()?;
    // Held open: a rule is for an inode, and /proc makes a new inode when it has forgotten the old
    // one.
    let _own = std::fs::File::open("/proc/self").context("cannot open /proc/self")?;
    // Likewise: the confined process cannot load drivers.
    let drivers = load_drivers(&config)?;
    confine(&config)?;
    args.try_open.iter().for_each(|path| try_open(path));
    crate::descriptors::raise_limit();
    listeners.serve(&job(&config), &config.name)?;
    let mut runtime = runtime(&config)?;
    let state = format!("tsumugi: node {} runs as process {}", config.name, std::process::id());
    let shutdown =
        async move { signals::termination_or(&mut signals, || eprintln!("{state}")).await };
    let mounter = helper.as_ref().map(|helper| Arc::clone(&helper.mounter));
    let node = Node { config, credential, mounter };
    let mut held = held;
    runtime.block_on(::node::run(&node, |ready| show_ready(ready, held.as_mut()), shutdown))?;
    drop(drivers);
    Ok(ExitCode::SUCCESS)
}

/// Returns the socket at which the node answers questions about itself: beside its life file, in
/// the job's directory.
fn listeners(config: &NodeConfig) -> anyhow::Result<Listeners> {
    let own = config.pid_file.as_ref().map(|path| path.with_extension("sock"));
    Listeners::new(own.as_deref(), config.metrics)
}

/// Returns the name of the node's job: that of the job's directory.
fn job(config: &NodeConfig) -> String {
    let directory = config.pid_file.as_deref().and_then(Path::parent);
    let name = directory.and_then(Path::file_name);
    name.map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

fn runtime(config: &NodeConfig) -> anyhow::Result<Runtime> {
    Ok(Runtime::new(&reactor::Config { spin: config.poll_us, ..reactor::Config::default() })?)
}

/// Creates missing backing files; the confined process cannot reach their directories.
fn create_devices(config: &NodeConfig) -> anyhow::Result<()> {
    let mut paths = config.devices.iter().filter_map(|device| device.path.as_deref());
    if paths.all(Path::exists) {
        return Ok(());
    }
    let mut bar: Option<ProgressBar> = None;
    let progress = move |path: &Path, done: u64, all: u64| {
        let bar = bar.get_or_insert_with(|| preparation(path, all));
        bar.set_position(done);
        if done == all {
            bar.finish_and_clear();
        }
    };
    Ok(runtime(config)?.block_on(::node::create_devices(config, progress))?)
}

/// Loads the drivers of RDMA devices, if the node's data goes over RDMA.
fn load_drivers(config: &NodeConfig) -> anyhow::Result<Option<Drivers>> {
    if config.fabric == Fabric::Tcp {
        return Ok(None);
    }
    Ok(Some(Drivers::load().context("fabric = \"rdma\"")?))
}

/// Confines the node to its own backing files, its file of marks, and the facts about the machine
/// that it must read; before any thread starts, see [`crate::confine`].
fn confine(config: &NodeConfig) -> anyhow::Result<()> {
    let mut own: Vec<_> =
        config.devices.iter().filter_map(|device| device.path.as_deref()).collect();
    for path in &own {
        // A confined process cannot distinguish a missing file from a forbidden one.
        path.metadata().with_context(|| format!("cannot use the device {}", path.display()))?;
    }
    let system = ["/proc/self", "/proc/sys", "/sys/devices/system", "/sys/fs/cgroup"];
    let fuse = ["/sys/module/fuse/parameters"];
    // For the names in a panic's backtrace.
    let program = std::env::current_exe().ok();
    let mut readable: Vec<_> = system.iter().chain(&fuse).map(Path::new).collect();
    readable.extend(program.as_deref());
    // A rule cannot name a namespace's file itself.
    readable.extend(config.network_namespace.as_deref().and_then(Path::parent));
    own.extend(config.marks.as_deref());
    let is_rdma = config.fabric == Fabric::Rdma;
    readable.extend(Drivers::readable().into_iter().filter(|_| is_rdma));
    let devices: &[&Path] = if is_rdma { &[Path::new(Drivers::DEVICES)] } else { &[] };
    crate::confine::confine_or_say(Files { writable: &own, readable: &readable, devices })
}

/// Prints whether the confined process can open a file.
fn try_open(path: &Path) {
    let readable = std::fs::File::open(path);
    let writable = std::fs::OpenOptions::new().write(true).open(path);
    for (how, result) in [("reading", readable), ("writing", writable)] {
        let result = result.map_or_else(|error| error.to_string(), |_| "opened".into());
        println!("{} for {how}: {result}", path.display());
    }
}

/// The process that mounts for this one.
struct Helper {
    mounter: Arc<Mounter>,
    child: Child,
}

impl Helper {
    /// Starts the helper: this program again, even if its file has been renamed.
    fn start(config: &Path) -> anyhow::Result<Helper> {
        let (mounter, socket) = Mounter::new().context("cannot make a socket")?;
        let child = Command::new("/proc/self/exe")
            .arg0("tsumugi")
            .arg("mount-helper")
            .arg(config)
            .stdin(Stdio::from(socket))
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start the process that mounts (is /proc mounted?)")?;
        Ok(Helper { mounter: Arc::new(mounter), child })
    }
}

impl Drop for Helper {
    /// Waits for the helper's end, so that nothing of a node is left when the node has ended.
    fn drop(&mut self) {
        self.mounter.close();
        let deadline = Instant::now() + HELPER_WAIT;
        while self.child.try_wait().is_ok_and(|status| status.is_none()) {
            if Instant::now() >= deadline {
                eprintln!("tsumugi: the mount helper (process {}) does not end", self.child.id());
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Runs `tsumugi mount-helper`: serves the node at the other end of standard input.
pub(crate) fn serve_mounts(args: &MountHelperArgs) -> anyhow::Result<ExitCode> {
    crate::confine::keep_files_private();
    // The helper ends with its node, and not before: signals to the whole group of a terminal or
    // job reach both.
    let _signals = signals::watch_service()?;
    let config = NodeConfig::read(&args.config)?;
    let socket = std::io::stdin().as_fd().try_clone_to_owned().context("no socket")?;
    ::node::serve_mounter(&config, &socket)?;
    Ok(ExitCode::SUCCESS)
}

fn preparation(path: &Path, all: u64) -> ProgressBar {
    let bar = ProgressBar::new(all);
    let form = "{msg}: {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
    if let Ok(style) = ProgressStyle::with_template(form) {
        bar.set_style(style);
    }
    bar.set_message(format!("writing {} once", path.display()));
    bar
}

/// Removes the mount that a killed predecessor left. Does not touch a living mount.
///
/// The kernel ends the mount of a killed process some time after the process. Until then the mount
/// does not answer, so this function waits.
fn remove_dead_mount(path: &Path) -> anyhow::Result<()> {
    let deadline = Instant::now() + MOUNT_END_WITHIN;
    loop {
        match mounts::condition(path, LOOK_WITHIN) {
            Condition::Dead => return mounts::take_down(path).map(drop),
            Condition::Silent if Instant::now() < deadline => {}
            Condition::Silent => bail!(
                "the mount at {} does not answer: end the process that serves it, or detach it \
                with `umount -l`",
                path.display()
            ),
            Condition::Mounted | Condition::NotMounted | Condition::Unknown => return Ok(()),
        }
    }
}

fn show_ready(ready: &Ready, held: Option<&mut Held>) {
    let transport = ready.transport.as_ref().map(|(transport, reason)| {
        let name = match transport {
            Transport::Device => "device",
            Transport::IoUring => "io_uring",
        };
        (name, reason.as_str())
    });
    if let Some(held) = held {
        let updated = held.update(|life| {
            life.address = Some(ready.target);
            life.transport = transport.map(|(name, _)| name.into());
            life.transport_reason = transport.map(|(_, reason)| reason.into());
        });
        if let Err(error) = updated {
            eprintln!("tsumugi: {}", crate::print::words(&error));
        }
    }
    if let Some((name, reason)) = transport {
        println!("FUSE transport {name}: {reason}");
    }
    let mount = ready.mount.as_deref().map_or("-".into(), |path| path.display().to_string());
    println!("ready mount {mount} target {}", ready.target);
}
