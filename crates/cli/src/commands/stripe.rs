//! `tsumugi stripe`: shows and sets how files are laid out over the devices.
//!
//! The layout is an extended attribute, so that programs can set it without this command.

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use rustix::fs::XattrFlags;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The extended attribute, with a value such as `stripe_size=1048576,stripe_count=4`.
const ATTRIBUTE: &str = "user.tsumugi.layout";
/// Longest value that the command reads.
const VALUE_BYTES_MAX: usize = 256;

/// Show or set how files are laid out over the devices.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
    tsumugi stripe set --stripe-count -1 --stripe-size 4M /mnt/job/shared
    tsumugi stripe get /mnt/job/shared

New files inherit the layout of their directory. A file's layout can be set while it is empty. A stripe \
count of 0 is the default, the node's own device first; -1 is all devices.")]
pub(crate) struct StripeArgs {
    #[command(subcommand)]
    command: StripeCommand,
}

#[derive(Debug, Subcommand)]
enum StripeCommand {
    /// Show layouts.
    #[command(after_help = "Example:\n    tsumugi stripe get /mnt/job/shared")]
    Get {
        /// Files and directories
        #[arg(value_name = "PATH", required = true)]
        paths: Vec<PathBuf>,
        /// Print the layouts as JSON
        #[arg(long)]
        json: bool,
    },
    /// Set layouts; settings that are not given stay unchanged.
    #[command(
        after_help = "Example:\n    tsumugi stripe set --stripe-count -1 --stripe-size 4M /mnt/job/shared"
    )]
    Set {
        /// Bytes to place on one device before the next device follows
        #[arg(long, value_name = "BYTES", value_parser = crate::deploy::size::parse)]
        stripe_size: Option<u64>,
        /// Number of devices: 0 for the default (the node's own device first), -1 for all
        #[arg(long, value_name = "N", allow_negative_numbers = true)]
        stripe_count: Option<i32>,
        /// Files and directories
        #[arg(value_name = "PATH", required = true)]
        paths: Vec<PathBuf>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    stripe_size: u64,
    stripe_count: i32,
}

impl Layout {
    fn parse(text: &str) -> Option<Layout> {
        let mut layout = (None, None);
        for part in text.split(',') {
            match part.trim().split_once('=')? {
                ("stripe_size", value) => layout.0 = Some(value.parse().ok()?),
                ("stripe_count", value) => layout.1 = Some(value.parse().ok()?),
                _ => {}
            }
        }
        Some(Layout { stripe_size: layout.0?, stripe_count: layout.1? })
    }

    fn to_text(self) -> String {
        format!("stripe_size={},stripe_count={}", self.stripe_size, self.stripe_count)
    }

    fn of(path: &Path) -> anyhow::Result<Layout> {
        let mut value = vec![0; VALUE_BYTES_MAX];
        let length = rustix::fs::getxattr(path, ATTRIBUTE, &mut value[..]).with_context(|| {
            format!("{} has no layout: is it on a tsumugi mount?", path.display())
        })?;
        let text = String::from_utf8_lossy(&value[..length]).into_owned();
        Layout::parse(&text)
            .with_context(|| format!("{} has the unknown layout {text:?}", path.display()))
    }
}

/// Runs `tsumugi stripe`.
pub(crate) fn run(args: &StripeArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        StripeCommand::Get { paths, json } => get(paths, *json),
        StripeCommand::Set { stripe_size, stripe_count, paths } => {
            if stripe_size.is_none() && stripe_count.is_none() {
                bail!("nothing to set: give --stripe-size, --stripe-count or both");
            }
            set(*stripe_size, *stripe_count, paths)
        }
    }?;
    Ok(ExitCode::SUCCESS)
}

fn get(paths: &[PathBuf], is_json: bool) -> anyhow::Result<()> {
    let mut all = Vec::new();
    for path in paths {
        let Layout { stripe_size, stripe_count } = Layout::of(path)?;
        if !is_json {
            println!("stripe_size={stripe_size} stripe_count={stripe_count} {}", path.display());
        }
        all.push(json!({ "path": path, "stripe_size": stripe_size, "stripe_count": stripe_count }));
    }
    if is_json {
        crate::output::print_json(&json!(all))?;
    }
    Ok(())
}

fn set(size: Option<u64>, count: Option<i32>, paths: &[PathBuf]) -> anyhow::Result<()> {
    for path in paths {
        let mut layout = Layout::of(path)?;
        layout.stripe_size = size.unwrap_or(layout.stripe_size);
        layout.stripe_count = count.unwrap_or(layout.stripe_count);
        let text = layout.to_text();
        rustix::fs::setxattr(path, ATTRIBUTE, text.as_bytes(), XattrFlags::empty())
            .with_context(|| format!("cannot set {text} on {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a layout survives a write and a read; half of a layout is invalid.
    #[test]
    fn layout_is_written_and_read() {
        let layout = Layout { stripe_size: 1 << 20, stripe_count: -1 };
        assert_eq!(Layout::parse(&layout.to_text()), Some(layout));
        for bad in ["", "stripe_size=1", "stripe_size=x,stripe_count=1", "stripe_count"] {
            assert_eq!(Layout::parse(bad), None, "{bad:?}");
        }
    }
}
