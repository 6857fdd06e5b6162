//! `connect-test`: checks the path to a namespace.

use super::args::{ConnectArgs, NamespaceArgs, check_destroy};
use super::foreign::OutputArgs;
use super::{Mismatch, pattern, print_json};
use clap::Args;
use host::{Controller, Namespace, Stage};
use reactor::{Buffer, time};
use serde_json::json;

/// Maximum bytes of the namespace to read (and, if confirmed, to write).
const CHECKED_BYTES_MAX: u64 = 4 << 20;
/// Bytes of the small requests, which are compared with the large one.
const SMALL_BYTES: u64 = 16 * 1024;
const SEED: u64 = 0x7473_756d_7567_6921;

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    namespace: NamespaceArgs,
    /// Also write, verify and restore the first 4 MiB; confirm by a name of the namespace (UUID,
    /// NGUID, EUI64) or the controller's serial number
    #[arg(long, value_name = "NAME")]
    destroy: Option<String>,
    #[command(flatten)]
    output: OutputArgs,
}

/// Connects with timing, compares large with small reads, and writes if that is confirmed.
pub(crate) async fn connect_test(args: CheckArgs) -> anyhow::Result<()> {
    let is_json = args.output.is_json()?;
    let controller = Controller::connect(args.connect.options()?).await?;
    let mut stages = controller.info().map(|info| info.stages).unwrap_or_default();
    let mut since = time::now();
    let mut done = |name| {
        let now = time::now();
        stages.push(Stage { name, duration: now.since(since) });
        since = now;
    };
    // A connection under a generated TLS key needs no other authentication.
    if controller.options().dhchap.is_some() && !controller.options().concat {
        controller.reauthenticate().await?;
        done("authenticate again");
    }
    let nsid = args.namespace.choose(&controller).await?;
    let namespace = Namespace::open(&controller, nsid).await?;
    done("identify namespace");
    let bytes = namespace.geometry().size().min(CHECKED_BYTES_MAX);
    let original = read_all(&namespace, bytes).await?;
    done("read 4 MiB in large requests");
    compare_small(&namespace, &original).await?;
    done("read the same in small requests, equal");
    if args.destroy.is_some() {
        check_destroy(args.destroy.as_deref(), &namespace)?;
        write_and_verify(&namespace, &original).await?;
        done("write, flush, verify, restore");
    }
    let info = controller.info();
    controller.disconnect().await?;
    done("disconnect");
    if is_json {
        let stages: Vec<_> = stages
            .iter()
            .map(|it| json!({ "stage": it.name, "us": it.duration.as_secs_f64() * 1e6 }))
            .collect();
        return print_json(&json!({ "ok": true, "stages": stages }));
    }
    for stage in &stages {
        println!("{:<42} {:>10.1} us  ok", stage.name, stage.duration.as_secs_f64() * 1e6);
    }
    if let Some(info) = info {
        println!(
            "{}, version {}, {} I/O queue pair(s) of {}, digests: header {}, data {}",
            info.controller_id,
            info.version,
            info.nr_io_queues,
            info.queue_size,
            if info.hdr_digest { "on" } else { "off" },
            if info.data_digest { "on" } else { "off" },
        );
    }
    Ok(())
}

async fn read_all(namespace: &Namespace, bytes: u64) -> anyhow::Result<Buffer> {
    Ok(namespace.read(0, Buffer::zeroed(bytes as usize)).await?)
}

async fn compare_small(namespace: &Namespace, expected: &Buffer) -> anyhow::Result<()> {
    let small = SMALL_BYTES.max(u64::from(namespace.geometry().block_size)) as usize;
    for (index, expected) in expected.chunks(small).enumerate() {
        let offset_bytes = (index * small) as u64;
        let read = namespace.read(offset_bytes, Buffer::zeroed(expected.len())).await?;
        if read[..] != *expected {
            let what =
                "a small read differs from a large one; does another program write?".to_owned();
            return Err(Mismatch { offset_bytes, bytes: expected.len() as u64, what }.into());
        }
    }
    Ok(())
}

/// Writes a pattern and checks it. Always restores the original.
async fn write_and_verify(namespace: &Namespace, original: &Buffer) -> anyhow::Result<()> {
    let verdict = async {
        let mut bytes = Buffer::zeroed(original.len());
        pattern::fill(&mut bytes, 0, SEED);
        namespace.write(0, bytes.freeze()).await?;
        namespace.flush().await?;
        let read = read_all(namespace, original.len() as u64).await?;
        pattern::check(&read, 0, SEED)?;
        anyhow::Ok(())
    }
    .await;
    namespace.write(0, Buffer::copy_from(original).freeze()).await?;
    namespace.flush().await?;
    verdict
}
