//! `attach`: a namespace as a file, through our host and FUSE, with no kernel module for NVMe.
//!
//! The directory holds one file, `namespace`, whose bytes are those of the namespace. Every read and
//! write of it is a command to the target: nothing is cached in the kernel, so programs that measure
//! see the namespace, plus what FUSE costs. Runs until it is told to end, and unmounts then.

mod export;

use super::args::{ConnectArgs, NamespaceArgs, check_destroy};
use crate::one_file::unmount_on_signals;
use anyhow::Context;
use clap::Args;
use export::Export;
use fuse::{MountOptions, Session, SessionOptions};
use ring::Runtime;
use std::path::PathBuf;
use std::rc::Rc;

/// Most bytes of one request of the kernel.
const REQUEST_BYTES_MAX: u32 = 1 << 20;

#[derive(Clone, Debug, Args)]
pub(crate) struct AttachArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    namespace: NamespaceArgs,
    /// Directory to mount at; the file in it is called `namespace`
    #[arg(long, value_name = "DIR")]
    mount: PathBuf,
    /// Allow writing, confirmed by a name of the namespace (UUID, NGUID, EUI64) or the controller's
    /// serial number [default: read-only]
    #[arg(long, value_name = "NAME")]
    destroy: Option<String>,
    /// Print JSON when it is ready
    #[arg(long)]
    json: bool,
}

/// Serves the file until SIGINT, SIGTERM or umount.
pub(crate) fn run(args: &AttachArgs) -> anyhow::Result<()> {
    // FUSE over io_uring needs the larger submission entries.
    let config = ring::Config { sqe128: true, ..ring::Config::default() };
    Runtime::new(&config)?.block_on(serve(args))
}

async fn serve(args: &AttachArgs) -> anyhow::Result<()> {
    let (controller, namespace) = super::open(&args.connect, &args.namespace).await?;
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
    let session = Session::mount(&args.mount, &mount_options, options)
        .with_context(|| format!("cannot mount at {}", args.mount.display()))?;
    unmount_on_signals(session.unmounter())?;
    let file = session.mountpoint().join(export::FILE_NAME);
    let export = Export::new(namespace.clone(), file, is_writable, args.json);
    let served = session.run(Rc::new(export)).await;
    let flushed = namespace.flush().await;
    let disconnected = controller.disconnect().await;
    served.context("serving the mount ended")?;
    flushed.context("the namespace cannot be flushed: its last writes may be lost")?;
    Ok(disconnected?)
}
