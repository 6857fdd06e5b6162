//! fio's JSON.
//!
//! Without `group_reporting` each clone of a job has an entry of its own, with the same name and group:
//! they are one run here. Rates add up; mean latencies are weighted by operations; percentiles of several
//! jobs cannot be made into one, so there are none then. CPU time is that of the jobs themselves.

use super::json::{Node, parse as parse_json};
use super::{Record, Wrong};
use base::units;
use loads::metric::Metric;
use loads::workload::Pattern;
use std::collections::BTreeMap;

/// What fio does where a job says nothing.
const DEFAULT_BLOCK: &str = "4k";

/// Reads fio's JSON, which may have messages before it.
pub(super) fn parse(text: &str) -> Result<Vec<Record>, Wrong> {
    let start = text.find('{').ok_or_else(|| Wrong::new(1, "JSON", "there is none"))?;
    // Lines before it count.
    let skipped = text[..start].matches('\n').count();
    parse_object(&text[start..]).map_err(|wrong| Wrong { line: wrong.line + skipped, ..wrong })
}

fn parse_object(text: &str) -> Result<Vec<Record>, Wrong> {
    let value = parse_json(text)?;
    let root = Node::root(text, &value);
    let mut base = Record::of(&root.get("fio version")?.shown());
    base.started_unix_s = root.find("timestamp").map(|_| root.whole("timestamp")).transpose()?;
    let mut groups: BTreeMap<(u64, String), Vec<Node<'_>>> = BTreeMap::new();
    let mut order = Vec::new();
    for job in root.list("jobs")? {
        let key = (job.whole("groupid")?, job.get("jobname")?.shown());
        if !groups.contains_key(&key) {
            order.push(key.clone());
        }
        groups.entry(key).or_default().push(job);
    }
    let mut records = Vec::new();
    for key in order {
        records.extend(record(&root, &base, &groups[&key])?);
    }
    Ok(records)
}

/// An option of a job: its own, else the one of all jobs.
fn option(root: &Node<'_>, job: &Node<'_>, name: &str) -> Option<String> {
    let of = |node: Option<Node<'_>>| node.and_then(|options| options.text(name));
    of(job.find("job options")).or_else(|| of(root.find("global options")))
}

/// One direction of all jobs of a group.
#[derive(Default)]
struct Side {
    bandwidth: f64,
    iops: f64,
    operations: f64,
    /// Sum over operations, µs.
    latency: f64,
    /// Of a single job, µs, by name.
    percentiles: BTreeMap<&'static str, f64>,
    seconds: f64,
}

fn side(jobs: &[Node<'_>], name: &str) -> Result<Side, Wrong> {
    let mut all = Side::default();
    for job in jobs {
        let it = job.get(name)?;
        let operations = it.number("total_ios")?;
        if operations == 0.0 {
            continue;
        }
        all.bandwidth += it.number("bw_bytes")?;
        all.iops += it.number("iops")?;
        all.operations += operations;
        all.latency += it.get("lat_ns")?.number("mean")? / 1000.0 * operations;
        all.seconds = all.seconds.max(it.number("runtime")? / 1000.0);
        let Some(found) = it.get("clat_ns")?.find("percentile") else { continue };
        for (name, key) in [("p50", "50.000000"), ("p99", "99.000000"), ("p999", "99.900000")] {
            if jobs.len() == 1 && found.find(key).is_some() {
                all.percentiles.insert(name, found.number(key)? / 1000.0);
            }
        }
    }
    Ok(all)
}

fn record(root: &Node<'_>, base: &Record, jobs: &[Node<'_>]) -> Result<Option<Record>, Wrong> {
    let first = &jobs[0];
    for job in jobs {
        if job.find("error").is_some() && job.whole("error")? != 0 {
            return Err(job.get("error")?.wrong("the job failed"));
        }
    }
    let (read, write) = (side(jobs, "read")?, side(jobs, "write")?);
    let operations = read.operations + write.operations;
    if operations == 0.0 {
        return Ok(None);
    }
    let is_mixed = read.operations > 0.0 && write.operations > 0.0;
    let rw = option(root, first, "rw").or_else(|| option(root, first, "readwrite"));
    let rw = rw.unwrap_or_else(|| "read".into());
    let whole = |name: &str| -> Result<u32, Wrong> {
        let Some(text) = option(root, first, name) else { return Ok(1) };
        let options = first.find("job options").unwrap_or_else(|| first.clone());
        let at = options.find(name).unwrap_or(options);
        text.parse().map_err(|_| at.wrong(format!("{name} = {text:?} is no number")))
    };
    let mut record = base.clone();
    record.workload = first.get("jobname")?.shown();
    record.way = option(root, first, "ioengine").unwrap_or_else(|| "psync".into());
    let is_even = option(root, first, "rwmixread").is_none_or(|share| share == "50");
    record.pattern = pattern(&rw, is_mixed).filter(|_| is_even || !is_mixed);
    record.is_direct = option(root, first, "direct").is_some_and(|it| it == "1");
    record.block_bytes = block(root, first, write.operations > 0.0)?;
    record.jobs = if jobs.len() > 1 { jobs.len() as u32 } else { whole("numjobs")? };
    record.depth = whole("iodepth")?;
    record.seconds = read.seconds.max(write.seconds);
    record.raw = first.shown();
    record.metrics = [
        (Metric::Bandwidth, read.bandwidth + write.bandwidth),
        (Metric::Iops, read.iops + write.iops),
        (Metric::Latency, (read.latency + write.latency) / operations),
        (Metric::CpuPerIo, cpu_seconds(jobs)? * 1e6 / operations),
    ]
    .into();
    let percentiles = if write.operations > 0.0 { write.percentiles } else { read.percentiles };
    for (name, value) in percentiles.into_iter().filter(|_| !is_mixed) {
        match name {
            "p99" => record.metrics.insert(Metric::LatencyP99, value),
            name => record.further.insert(format!("{name}_us"), value),
        };
    }
    record.further.insert("ios".into(), operations);
    Ok(Some(record))
}

/// A pattern that has a name here: fio's `rw` and `trim` have none, nor has a mixture that is not even.
fn pattern(rw: &str, is_mixed: bool) -> Option<Pattern> {
    let name = rw.split(':').next().unwrap_or_default();
    let found = Pattern::ALL.iter().find(|(known, _)| *known == name)?.1;
    (is_mixed == (found == Pattern::RandomMixed)).then_some(found)
}

/// The block size; of those for reads, writes and trims the one that was used.
fn block(root: &Node<'_>, job: &Node<'_>, is_write: bool) -> Result<u64, Wrong> {
    let given = option(root, job, "bs").or_else(|| option(root, job, "blocksize"));
    let given = given.unwrap_or_else(|| DEFAULT_BLOCK.into());
    let parts: Vec<&str> = given.split(',').collect();
    let text = parts[usize::from(is_write).min(parts.len() - 1)];
    units::parse_bytes(text).map_err(|why| {
        let options = job.find("job options").unwrap_or_else(|| root.clone());
        options.find("bs").unwrap_or(options).wrong(why.to_string())
    })
}

/// `job_runtime` is in ms, and with `group_reporting` the sum over jobs; the shares are of it.
fn cpu_seconds(jobs: &[Node<'_>]) -> Result<f64, Wrong> {
    let mut seconds = 0.0;
    for job in jobs {
        let share = (job.number("usr_cpu")? + job.number("sys_cpu")?) / 100.0;
        seconds += share * job.number("job_runtime")? / 1000.0;
    }
    Ok(seconds)
}
