//! `tsumugi exporter`: serves the metrics of all jobs of this machine to Prometheus.

use crate::deploy::ask::Service;
use crate::deploy::jobs::{self, Job};
use crate::deploy::others;
use crate::observe::server;
use crate::observe::text::{self, Part};
use anyhow::{Context, bail};
use clap::Args;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::ExitCode;

/// Serve counts and latencies of all jobs on this machine to Prometheus.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
    tsumugi exporter                              at http://127.0.0.1:9464/metrics
    tsumugi exporter --job 4711 --listen 127.0.0.1:9500
    tsumugi exporter --once                       print the metrics and exit

At each scrape the exporter reads the counters of every node and metadata service of this user's \
jobs on this machine (as root: of all users' jobs). Labels name the job and its part. \
contrib/grafana contains a dashboard; docs/observability.md lists the metrics. It runs until a \
signal ends it.

Exit codes:
    0  printed
    1  cannot listen at this address
    2  wrong usage")]
pub(crate) struct ExporterArgs {
    /// Address and port to listen on
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:9464")]
    listen: SocketAddr,
    /// Allow an address beyond loopback: any program that reaches the port can read counts and
    /// names of jobs and nodes
    #[arg(long)]
    insecure: bool,
    /// Serve this job only
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
    /// Print the metrics once and exit
    #[arg(long)]
    once: bool,
}

/// Runs `tsumugi exporter`.
pub(crate) fn run(args: &ExporterArgs) -> anyhow::Result<ExitCode> {
    if args.once {
        print!("{}", render(args.job.as_deref()));
        return Ok(ExitCode::SUCCESS);
    }
    if !args.listen.ip().is_loopback() && !args.insecure {
        bail!(
            "{} is not a loopback address: add --insecure if every program that reaches it may \
            read counts and names of jobs and nodes",
            args.listen
        );
    }
    let listener = TcpListener::bind(args.listen)
        .with_context(|| format!("cannot listen at {}", args.listen))?;
    println!("listening on {}", listener.local_addr().context("the listener has no address")?);
    let job = args.job.clone();
    server::serve_text(&listener, move || render(job.as_deref()))
}

/// Returns the metrics of all services that answer.
fn render(job: Option<&str>) -> String {
    let mut jobs = jobs::own(None).0;
    if rustix::process::geteuid().is_root() {
        jobs.extend(others::jobs().jobs);
    }
    let wanted = jobs.into_iter().filter(|found| job.is_none_or(|job| found.name == job));
    let parts: Vec<_> = wanted.flat_map(|found| of_job(&found)).collect();
    text::of(parts)
}

fn of_job(job: &Job) -> Vec<Part> {
    let Some(state) = &job.state else { return Vec::new() };
    let nodes = state.nodes.iter().map(|node| (node.name.clone(), state.node_socket(&node.name)));
    let meta = state.meta.iter().map(|_| ("meta".to_owned(), state.meta_socket()));
    let answer = |(name, socket): (String, PathBuf)| {
        let snapshot = Service::new(socket, job.user).snapshot().ok()?;
        Some(Part { job: state.job.clone(), name, snapshot })
    };
    nodes.chain(meta).filter_map(answer).collect()
}
