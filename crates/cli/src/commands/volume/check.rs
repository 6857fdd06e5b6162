//! `tsumugi volume check`: checks the metadata of a pool for contradictions.

use super::backing;
use crate::output::print_json;
use anyhow::Context;
use clap::Args;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;
use volume::{Finding, Pool};

/// Arguments of `tsumugi volume check`.
#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// File or block device of the pool
    pool: PathBuf,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Runs `tsumugi volume check`.
pub(super) async fn run(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    let backing = backing(&args.pool).await?;
    let checked = Pool::check(&backing).await;
    let report = checked.with_context(|| format!("cannot check {}", args.pool.display()))?;
    let is_sound = report.count == 0;
    if args.json {
        let value = |it: &Finding| json!({ "text": it.text, "fatal": it.is_fatal });
        let findings: Vec<Value> = report.findings.iter().map(value).collect();
        print_json(&json!({
            "sound": is_sound,
            "opens": report.fatal().is_none(),
            "volumes": report.volumes,
            "metadata_pages": report.pages,
            "clusters_used": report.used,
            "findings": findings,
            "findings_count": report.count,
        }))?;
    } else {
        for finding in &report.findings {
            println!("{}", finding.text);
        }
        if report.count > report.findings.len() {
            println!("and {} more findings", report.count - report.findings.len());
        }
        let (volumes, pages, used) = (report.volumes, report.pages, report.used);
        let verdict = match (is_sound, report.fatal()) {
            (true, _) => "no damage",
            (false, None) => "damaged, but a second copy is good: the pool can be used",
            (false, Some(_)) => "damaged: the pool cannot be used",
        };
        println!("{volumes} volumes, {pages} metadata pages, {used} clusters in use: {verdict}");
    }
    Ok(if is_sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
