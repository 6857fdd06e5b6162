//! `attach`: a namespace as a block device of the kernel's NVMe host, or, if the kernel has no
//! such host, as a file through our host and FUSE.
//!
//! The kernel's device is `/dev/nvmeXnY`, as with nvme-cli. Our host shows a directory with one
//! file, `namespace`, with the bytes of the namespace. Every read and write of it is a command to
//! the target: the kernel caches nothing, so programs that measure see the namespace, plus the cost
//! of FUSE. When the namespace is ready, the command prints which of the two it is, and why. It
//! runs until a signal, and then detaches.

mod export;
mod kernel;

use super::args::{ConnectArgs, NamespaceArgs, check_destroy};
use super::foreign::OutputArgs;
use super::paths::{self, PathArgs};
use crate::engine::Engine;
use crate::one_file::unmount_on_signals;
use anyhow::{Context, bail};
use clap::Args;
use export::Export;
use fuse::{MountOptions, Session, SessionOptions};
use kernel::Attached;
use nvme::Nsid;
use reactor::Runtime;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

/// Maximum bytes of one request of the kernel.
const REQUEST_BYTES_MAX: u32 = 1 << 20;
/// Pause between two checks that the kernel's controller still exists.
const LOOK_EVERY: Duration = Duration::from_millis(200);

#[derive(Clone, Debug, Args)]
pub(crate) struct AttachArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    paths: PathArgs,
    #[command(flatten)]
    namespace: NamespaceArgs,
    /// Directory to mount at, for our host; the file in it is called `namespace`
    #[arg(long, value_name = "DIR")]
    mount: Option<PathBuf>,
    /// Host to use: the kernel's provides a block device, needs root, and opens no sockets in other
    /// network namespaces; our own provides a file through FUSE, on any reactor or on the given
    /// engine; auto uses the kernel's if it is available
    #[arg(long, default_value = "auto", value_parser = Engine::all())]
    engine: Engine,
    /// Allow writes, confirmed by a name of the namespace (UUID, NGUID, EUI64) or the controller's
    /// serial number [default: read-only]
    #[arg(long, value_name = "NAME")]
    destroy: Option<String>,
    #[command(flatten)]
    output: OutputArgs,
}

/// Attaches until SIGINT, SIGTERM or umount.
pub(crate) fn run(args: &AttachArgs) -> anyhow::Result<()> {
    args.output.is_json()?;
    if matches!(args.engine, Engine::Own | Engine::Reactor(_)) {
        return run_own(args, "");
    }
    match (kernel_check(args), args.engine) {
        (Ok(()), _) => run_kernel(args),
        (Err(why), Engine::Kernel) => bail!("{why}"),
        (Err(why), _) => run_own(args, &format!(", as {why}")),
    }
}

/// Returns an error with the reason if the kernel's host cannot do what the arguments ask for.
fn kernel_check(args: &AttachArgs) -> Result<(), String> {
    if args.connect.has_network_namespace() {
        return Err("the kernel's host would reconnect outside the network namespace".into());
    }
    if args.paths.is_given() {
        return Err(
            "--path is for our own host; the kernel's host takes each path by nvme connect".into(),
        );
    }
    if args.connect.has_tls() {
        return Err("the kernel's host takes TLS keys only from its keyring, see nvme-cli".into());
    }
    kernel::check(args.connect.transport().map_err(|error| error.to_string())?)
}

/// Reports that the namespace can be used: its path, and the host behind it.
fn print_ready(is_json: bool, file: &Path, how: &str) {
    let mut out = std::io::stdout().lock();
    let said = if is_json {
        writeln!(out, "{}", serde_json::json!({ "file": file, "how": how }))
    } else {
        writeln!(out, "{}: {how}", file.display())
    };
    // If the reader has gone, the report is not needed.
    let _ = said.and_then(|()| out.flush());
}

fn run_kernel(args: &AttachArgs) -> anyhow::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("cannot watch for signals")?;
    let nsid = super::block_on(identify(args))?;
    let attached = kernel::attach(&args.connect.options()?, nsid)?;
    if args.destroy.is_none()
        && let Err(error) = attached.protect()
    {
        attached.detach()?;
        return Err(error);
    }
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let (_, host) = kernel::names(args.connect.transport()?);
    let how = format!("block device of the kernel's {host} host (Linux {release})");
    print_ready(args.output.is_json()?, &attached.device, &how);
    stay(&attached, &mut signals)?;
    attached.detach()
}

/// Returns the namespace's identifier, after comparing the consent to writes with the namespace's
/// names.
async fn identify(args: &AttachArgs) -> anyhow::Result<Nsid> {
    let (controller, namespace) = super::open(&args.connect, &args.namespace).await?;
    if args.destroy.is_some() {
        check_destroy(args.destroy.as_deref(), &namespace)?;
    }
    let nsid = namespace.nsid();
    drop(namespace);
    controller.disconnect().await?;
    Ok(nsid)
}

/// Waits for a signal. While a file system is on the device, the first signal only prints a
/// message.
fn stay(attached: &Attached, signals: &mut Signals) -> anyhow::Result<()> {
    let mut is_warned = false;
    while attached.is_there() {
        if signals.pending().next().is_some() {
            if is_warned || !attached.is_in_use() {
                return Ok(());
            }
            is_warned = true;
            let device = attached.device.display();
            eprintln!("tsumugi: {device} is in use: unmount it, or send the signal again");
        }
        std::thread::sleep(LOOK_EVERY);
    }
    bail!("another program removed the kernel's controller")
}

fn run_own(args: &AttachArgs, why: &str) -> anyhow::Result<()> {
    // FUSE over io_uring needs the larger submission entries.
    let config = reactor::Config { sqe128: true, ..reactor::Config::default() };
    Runtime::new(&config)?.block_on(serve(args, why))
}

async fn serve(args: &AttachArgs, why: &str) -> anyhow::Result<()> {
    let mount =
        args.mount.as_deref().context("--mount DIR is missing: our host shows the file there")?;
    let (controllers, namespace) = paths::open(&args.connect, &args.paths, &args.namespace).await?;
    let is_writable = args.destroy.is_some();
    if is_writable {
        check_destroy(args.destroy.as_deref(), &namespace)?;
    }
    let mount_options = MountOptions {
        fs_name: "tsumugi-namespace".into(),
        read_only: !is_writable,
        ..MountOptions::default()
    };
    let options = SessionOptions { max_write_bytes: REQUEST_BYTES_MAX, ..Default::default() };
    let session = Session::mount(mount, &mount_options, options)
        .with_context(|| format!("cannot mount at {}", mount.display()))?;
    unmount_on_signals(session.unmounter())?;
    let file = session.mountpoint().join(export::FILE_NAME);
    let (is_json, why) = (args.output.is_json()?, why.to_string());
    let (_, host) = kernel::names(args.connect.transport()?);
    let ready = move |transport: &str| {
        let how = format!("file through FUSE ({transport}) on our own {host} host{why}");
        print_ready(is_json, &file, &how);
    };
    let export = Export::new(namespace.clone(), is_writable, Box::new(ready));
    let served = session.run(Rc::new(export)).await;
    let flushed = namespace.flush().await;
    let disconnected = controllers.disconnect().await;
    served.context("serving the mount ended")?;
    flushed.context("the namespace cannot be flushed: its last writes may be lost")?;
    disconnected
}

/// Arguments of `detach`.
#[derive(Clone, Debug, Args)]
pub(crate) struct DetachArgs {
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Removes the kernel host's controllers of a subsystem, e.g. after an `attach` that was killed.
pub(crate) fn detach(args: &DetachArgs) -> anyhow::Result<()> {
    let options = args.connect.options()?;
    let (address, nqn) = (options.address, options.subsystem_nqn.to_string());
    match kernel::detach(address, &nqn)? {
        0 => bail!("the kernel's host has no controller of {nqn} at {address}"),
        count => println!("{count} controllers of {nqn} at {address} ended"),
    }
    Ok(())
}
