//! `tsumugi meta`: runs a metadata service with an embedded store.

use crate::signals;
use ::meta::service::{Config, Service, StoreChoice, Times};
use anyhow::{Context, bail};
use clap::Args;
use protocol::auth::Secret;
use ring::Runtime;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::ExitCode;

/// Run a metadata service.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
    head -c 32 /dev/urandom | xxd -p -c 64 >secret; chmod 600 secret
    tsumugi meta --listen 127.0.0.1:7000 --store /var/tmp/job.meta --secret secret

As a rule `tsumugi up` starts it. SIGINT and SIGTERM end it in good order; a later start on the same
store goes on where it ended, also after a crash.")]
pub(crate) struct MetaArgs {
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:7000")]
    listen: SocketAddr,
    /// Directory of the store; made if it is missing
    #[arg(long, value_name = "DIR")]
    store: PathBuf,
    /// File with the job's secret: 64 hexadecimal digits
    #[arg(long, value_name = "FILE")]
    secret: PathBuf,
    /// Network namespace for the sockets, e.g. /run/netns/meta
    #[arg(long, value_name = "PATH")]
    network_namespace: Option<PathBuf>,
    /// Allow listening beyond loopback: the secret is never sent, but data is not encrypted
    #[arg(long)]
    insecure: bool,
    /// Microseconds to spin for work before sleeping
    #[arg(long, value_name = "N", default_value_t = 0)]
    poll_us: u64,
    /// Divide all deadlines by this, as the pool's nodes do (`faster`): for tests of failures
    #[arg(long, value_name = "N", default_value_t = 1, hide = true)]
    faster: u32,
}

/// Runs `tsumugi meta`.
pub(crate) fn run(args: &MetaArgs) -> anyhow::Result<ExitCode> {
    if !args.listen.ip().is_loopback() && !args.insecure && args.network_namespace.is_none() {
        bail!(
            "{} is beyond loopback, and connections are not encrypted yet: add --insecure if the \
             network is trusted",
            args.listen
        );
    }
    let text = std::fs::read_to_string(&args.secret)
        .with_context(|| format!("cannot read the secret {}", args.secret.display()))?;
    let Some(secret) = Secret::from_hex(&text) else {
        bail!("{} is no secret: 64 hexadecimal digits are needed", args.secret.display());
    };
    confine(args)?;
    let mut signals = signals::watch(&[])?;
    let poll = std::time::Duration::from_micros(args.poll_us);
    let mut runtime = Runtime::new(&ring::Config { poll, ..ring::Config::default() })?;
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let config = Config {
        listen: args.listen,
        network_namespace: args.network_namespace.clone(),
        store: StoreChoice::Directory(args.store.clone()),
        secret,
        root: (0o755, uid, gid),
        boot: None,
        times: Times::faster(args.faster),
    };
    runtime.block_on(async move {
        let service = Service::start(config)?;
        println!("listening on {}", service.address());
        let ended = {
            let ended = pin!(service.ended());
            let stopped = pin!(signals::termination(&mut signals));
            ring::race(ended, stopped).await
        };
        match ended {
            ring::Either::First(ended) => ended?,
            ring::Either::Second(()) => service.stop().await?,
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// The service opens its store and nothing else; before any thread starts, see [`crate::confine`].
fn confine(args: &MetaArgs) -> anyhow::Result<()> {
    std::fs::create_dir_all(&args.store)
        .with_context(|| format!("cannot make {}", args.store.display()))?;
    let system = ["/proc/self", "/proc/sys", "/sys/devices/system", "/sys/fs/cgroup"];
    let mut readable: Vec<_> = system.iter().map(Path::new).collect();
    // A namespace's file itself cannot be named in a rule.
    readable.extend(args.network_namespace.as_deref().and_then(Path::parent));
    crate::confine::confine_or_say(&[&args.store], &readable)
}
