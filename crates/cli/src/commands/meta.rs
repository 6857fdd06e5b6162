//! `tsumugi meta`: runs a metadata service with an embedded store, or checks such a store.

use crate::confine::Files;
use crate::deploy::life::Held;
use crate::keys;
use crate::observe::server::Listeners;
use crate::signals;
use ::meta::service::{Config, ServeError, Service, StoreChoice, Times};
use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use meta::store::{FjallStore, boot_id};
use protocol::auth::Secret;
use reactor::Runtime;
use rpc::Guard;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;
use tls::JobKey;

/// How long to wait for an address that a killed service still holds.
const LISTEN_PATIENCE: Duration = Duration::from_secs(5);

/// Pause between two attempts to listen.
const LISTEN_PAUSE: Duration = Duration::from_millis(20);

/// Run a metadata service.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
    head -c 32 /dev/urandom | xxd -p -c 64 >secret; chmod 600 secret
    tsumugi meta --listen 127.0.0.1:7000 --store /var/tmp/job.meta --secret secret
    tsumugi meta check /var/tmp/job.meta

Usually `tsumugi up` starts the service. A later start on the same store continues from its last \
commit, also after a crash; `tsumugi restart` does this for a job, at the address that its nodes \
use. The service refuses to start if acknowledged commits are missing from the store, for example \
after damage to its disk.

SIGINT and SIGTERM end it cleanly. SIGUSR1 prints a line on its state. SIGHUP and SIGUSR2 do \
nothing.

Exit codes:
    0  ended cleanly
    1  failed; the reason is printed
    2  wrong usage")]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct MetaArgs {
    #[command(subcommand)]
    command: Option<MetaCommand>,
    #[command(flatten)]
    serve: Option<ServeArgs>,
}

#[derive(Debug, Subcommand)]
enum MetaCommand {
    /// Check whether a store has everything that was acknowledged.
    #[command(after_help = "\
Example:
    tsumugi meta check /var/tmp/job.meta

Changes nothing. The service must not be running.

Exit codes:
    0  nothing is missing
    1  commits are missing, files are damaged, or the store cannot be read
    2  wrong usage")]
    Check {
        /// Directory of the store
        #[arg(value_name = "DIR")]
        store: PathBuf,
    },
}

#[derive(Debug, Args)]
struct ServeArgs {
    /// Address and port to listen on; port 0 chooses a free port
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:7000")]
    listen: SocketAddr,
    /// Directory of the store; created if missing
    #[arg(long, value_name = "DIR")]
    store: PathBuf,
    /// File with the job's key: 64 hexadecimal digits, readable by this user only
    #[arg(long, value_name = "FILE")]
    secret: PathBuf,
    /// Continue although acknowledged commits are missing from the store; their changes are lost
    #[arg(long)]
    accept_loss: bool,
    /// Network namespace for the sockets, e.g. /run/netns/meta
    #[arg(long, value_name = "PATH")]
    network_namespace: Option<PathBuf>,
    /// Serve without TLS: programs on the network can read and change calls. For tests and
    /// measurements
    #[arg(long, hide = true)]
    plain: bool,
    /// With --plain, allow listening beyond loopback
    #[arg(long)]
    insecure: bool,
    /// Owner of the root directory of a new store; the directory is then closed to other users
    /// [default: user and group of this process, with mode 755]
    #[arg(long, value_name = "UID:GID", value_parser = parse_owner)]
    owner: Option<(u32, u32)>,
    /// Socket for `tsumugi stats` and `tsumugi trace`, for this user only
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Address and port at which Prometheus scrapes counts and latencies over HTTP
    #[arg(long, value_name = "ADDR:PORT")]
    metrics: Option<SocketAddr>,
    /// Microseconds to spin for work before sleeping, or auto: only while that is cheaper than a
    /// wake-up
    #[arg(long, value_name = "N|auto", default_value_t)]
    poll_us: reactor::Spin,
    /// Divide all deadlines by this number, as the pool's nodes do (`faster`): for tests of
    /// failures
    #[arg(long, value_name = "N", default_value_t = 1, hide = true)]
    faster: u32,
}

fn parse_owner(text: &str) -> Result<(u32, u32), String> {
    let numbers =
        text.split_once(':').and_then(|(uid, gid)| Some((uid.parse().ok()?, gid.parse().ok()?)));
    numbers.ok_or_else(|| format!("{text:?} is not UID:GID, two numbers"))
}

/// Runs `tsumugi meta`.
pub(crate) fn run(args: &MetaArgs) -> anyhow::Result<ExitCode> {
    crate::confine::keep_files_private();
    crate::confine::keep_out_of_core_files();
    match (&args.command, &args.serve) {
        (Some(MetaCommand::Check { store }), _) => check(store),
        (None, Some(serve)) => run_service(serve),
        (None, None) => bail!("--store and --secret are needed; see `tsumugi meta --help`"),
    }
}

fn check(store: &Path) -> anyhow::Result<ExitCode> {
    let boot = boot_id().context("cannot read /proc/sys/kernel/random/boot_id")?;
    let checked = FjallStore::check(store, boot)?;
    println!(
        "{}: nothing is missing ({} commits, synced up to number {})",
        store.display(),
        checked.head.sequence,
        checked.synced
    );
    Ok(ExitCode::SUCCESS)
}

fn run_service(args: &ServeArgs) -> anyhow::Result<ExitCode> {
    // Before anything else: from here on no stray signal ends the process.
    let mut signals = signals::watch_service()?;
    let is_exposed = !args.listen.ip().is_loopback() && args.network_namespace.is_none();
    if args.plain && is_exposed && !args.insecure {
        bail!(
            "{} is not a loopback address, and --plain turns encryption off: omit --plain, or add \
            --insecure if the network is trusted",
            args.listen
        );
    }
    let (guard, data_keys) = keys_of(args)?;
    std::fs::create_dir_all(&args.store)
        .with_context(|| format!("cannot make {}", args.store.display()))?;
    let mut held = Held::take(&beside(&args.store))?;
    let listeners = Listeners::new(args.socket.as_deref(), args.metrics)?;
    confine(args)?;
    listeners.serve(&job(args), "meta")?;
    crate::descriptors::raise_limit();
    let mut runtime =
        Runtime::new(&reactor::Config { spin: args.poll_us, ..reactor::Config::default() })?;
    let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let root = args.owner.map_or((0o755, own.0, own.1), |(uid, gid)| (0o700, uid, gid));
    let config = || Config {
        listen: args.listen,
        network_namespace: args.network_namespace.clone(),
        store: StoreChoice::Directory { path: args.store.clone(), accept_loss: args.accept_loss },
        guard: guard.clone(),
        data_keys: data_keys.clone(),
        root,
        boot: None,
        times: Times::faster(args.faster),
    };
    runtime.block_on(async move {
        let service = start(config).await?;
        held.update(|life| life.address = Some(service.address()))?;
        println!("listening on {}", service.address());
        let state = format!("tsumugi: metadata service {} runs", service.address());
        let ended = {
            let ended = pin!(service.ended());
            let stopped = pin!(signals::termination_or(&mut signals, || eprintln!("{state}")));
            reactor::race(ended, stopped).await
        };
        match ended {
            reactor::Either::First(ended) => ended?,
            reactor::Either::Second(()) => service.stop().await?,
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Returns the name of the job that has the socket in its directory.
fn job(args: &ServeArgs) -> String {
    let directory = args.socket.as_deref().and_then(Path::parent).and_then(Path::file_name);
    directory.map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

/// Starts the service. Waits for an address that the kernel still holds for a killed service.
async fn start(config: impl Fn() -> Config) -> Result<Service, ServeError> {
    let deadline = reactor::time::now() + LISTEN_PATIENCE;
    loop {
        match Service::start(config()) {
            Err(ServeError::Listen { source, .. })
                if source.kind() == io::ErrorKind::AddrInUse && reactor::time::now() < deadline => {
            }
            started => return started,
        }
        reactor::time::sleep(LISTEN_PAUSE).await;
    }
}

/// Returns how the service authenticates its clients, and the key from which it derives the keys of
/// data.
fn keys_of(args: &ServeArgs) -> anyhow::Result<(Guard, Option<JobKey>)> {
    if args.plain {
        let secret = Secret::from_hex(&keys::read_text(&args.secret)?);
        let secret = secret.context("a secret is 64 hexadecimal digits")?;
        return Ok((Guard::Plain(secret), None));
    }
    let job = keys::read_job(&args.secret)?;
    Ok((Guard::of_job(&job)?, Some(job)))
}

/// Returns the path of the file whose lock shows that a store's service lives.
fn beside(store: &Path) -> PathBuf {
    let mut name = store.as_os_str().to_owned();
    name.push(".pid");
    name.into()
}

/// Confines the service to its store; before any thread starts, see [`crate::confine`].
fn confine(args: &ServeArgs) -> anyhow::Result<()> {
    let system = ["/proc/self", "/proc/sys", "/sys/devices/system", "/sys/fs/cgroup"];
    let mut readable: Vec<_> = system.iter().map(Path::new).collect();
    // A rule cannot name a namespace's file itself.
    readable.extend(args.network_namespace.as_deref().and_then(Path::parent));
    crate::confine::confine_or_say(Files {
        writable: &[&args.store],
        readable: &readable,
        ..Files::default()
    })
}
