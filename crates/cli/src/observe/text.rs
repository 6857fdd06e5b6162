//! A snapshot in Prometheus' text form (`OpenMetrics` 1.0), by the Prometheus project's own
//! library.

use metrics::{Counts, Family, Snapshot, Value};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use std::collections::BTreeMap;
use std::fmt;

/// The content type of this text.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The prefix of all metric names.
const PREFIX: &str = "tsumugi";

/// No labels: the type that the library needs where there are no exemplars.
type NoLabels = [(&'static str, &'static str); 0];

/// A snapshot of a process of a job.
#[derive(Debug)]
pub(crate) struct Part {
    /// The job's name.
    pub(crate) job: String,
    /// The process's name within the job.
    pub(crate) name: String,
    /// The counters and activity of the process.
    pub(crate) snapshot: Snapshot,
}

impl Part {
    fn labels<'a>(&'a self, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
        let own = [("job_name", self.job.as_str()), ("part", self.name.as_str())];
        own.into_iter().chain(more.iter().copied()).collect()
    }
}

#[derive(Debug)]
struct Whole(Vec<Part>);

impl Whole {
    fn operations(&self) -> impl Iterator<Item = (&Part, &Counts)> {
        self.0.iter().flat_map(|part| part.snapshot.operations.iter().map(move |one| (part, one)))
    }
}

fn labels<'a>(part: &'a Part, one: &'a Counts) -> Vec<(&'a str, &'a str)> {
    part.labels(&[("family", one.family.name()), ("operation", &one.name)])
}

impl Collector for Whole {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        self.latencies(&mut encoder)?;
        self.sums(&mut encoder, "errors", "Operations that failed or were given up", |o| o.errors)?;
        self.sums(&mut encoder, "bytes", "Data that operations carried", |o| o.bytes)?;
        self.running(&mut encoder)?;
        self.numbers(&mut encoder)
    }
}

impl Whole {
    fn latencies(&self, encoder: &mut DescriptorEncoder) -> Result<(), fmt::Error> {
        let (help, unit) = ("Latencies of operations", Unit::Seconds);
        let kind = MetricType::Histogram;
        let mut metric = encoder.encode_descriptor("operation", help, Some(&unit), kind)?;
        for (part, one) in self.operations() {
            let buckets = one.latencies.powers();
            let sum = one.sum_ns as f64 / 1e9;
            let labels = labels(part, one);
            let mut own = metric.encode_family(&labels)?;
            own.encode_histogram::<NoLabels>(sum, one.count(), &buckets, None)?;
        }
        Ok(())
    }

    fn sums(
        &self,
        encoder: &mut DescriptorEncoder,
        name: &str,
        help: &str,
        of: impl Fn(&Counts) -> u64,
    ) -> Result<(), fmt::Error> {
        let name = format!("operation_{name}");
        let mut metric = encoder.encode_descriptor(&name, help, None, MetricType::Counter)?;
        for (part, one) in self.operations() {
            let labels = labels(part, one);
            ConstCounter::new(of(one)).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn running(&self, encoder: &mut DescriptorEncoder) -> Result<(), fmt::Error> {
        let (name, help) = ("operations_running", "Operations that run now");
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for part in &self.0 {
            for family in Family::ALL {
                let running = part.snapshot.running.iter();
                let count = running.filter(|one| one.family == family).count();
                let labels = part.labels(&[("family", family.name())]);
                ConstGauge::new(count as u64).encode(metric.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }

    /// Numbers of one name must be adjacent.
    fn numbers(&self, encoder: &mut DescriptorEncoder) -> Result<(), fmt::Error> {
        let mut by_name: BTreeMap<&str, Vec<(&Part, &Value)>> = BTreeMap::new();
        for part in &self.0 {
            for value in &part.snapshot.values {
                by_name.entry(&value.name).or_default().push((part, value));
            }
        }
        for (name, values) in by_name {
            let Some((_, first)) = values.first() else { continue };
            let kind = if first.is_counter { MetricType::Counter } else { MetricType::Gauge };
            let mut metric = encoder.encode_descriptor(name, &first.help, None, kind)?;
            for (part, value) in &values {
                let more: Vec<_> =
                    value.labels.iter().map(|(name, it)| (name.as_str(), it.as_str())).collect();
                let labels = part.labels(&more);
                let metric = metric.encode_family(&labels)?;
                if first.is_counter {
                    ConstCounter::new(value.value).encode(metric)?;
                } else {
                    ConstGauge::new(value.value).encode(metric)?;
                }
            }
        }
        Ok(())
    }
}

/// Returns the text of these processes.
pub(crate) fn of(parts: Vec<Part>) -> String {
    let mut registry = Registry::with_prefix(PREFIX);
    registry.register_collector(Box::new(Whole(parts)));
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = prometheus_client::encoding::text::encode(&mut text, &registry);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use metrics::Point;
    use std::time::Duration;

    /// Goal: the text has each operation of each process with its buckets, consistent sums, and
    /// labels; numbers of one name are adjacent.
    #[test]
    fn prometheus_gets_its_text() {
        let begun = reactor::time::now() - Duration::from_millis(3);
        let mut read = metrics::start_at(Point::new(Family::Fuse, 15, "READ"), 1, 0, begun);
        read.carried(4096);
        read.end(5);
        metrics::add_source(Box::new(|| {
            vec![Value::counter("device_bytes", "Bytes", 7).with("device", "0")]
        }));
        let snapshot = metrics::snapshot();
        let part =
            |part: &str| Part { job: "j".into(), name: part.into(), snapshot: snapshot.clone() };
        let text = of(vec![part("n\"1"), part("meta")]);
        let own = r#"job_name="j",part="n\"1""#;
        let labels = format!(r#"{own},family="fuse",operation="READ""#);
        for line in [
            "# TYPE tsumugi_operation_seconds histogram".to_owned(),
            format!("tsumugi_operation_seconds_count{{{labels}}} 1"),
            format!("tsumugi_operation_seconds_bucket{{le=\"+Inf\",{labels}}} 1"),
            format!("tsumugi_operation_bytes_total{{{labels}}} 4096"),
            format!("tsumugi_operation_errors_total{{{labels}}} 1"),
            "# TYPE tsumugi_device_bytes counter".to_owned(),
            format!("tsumugi_device_bytes_total{{{own},device=\"0\"}} 7"),
            "# EOF".to_owned(),
        ] {
            assert_eq!(text.lines().filter(|it| **it == line).count(), 1, "{line}\n{text}");
        }
    }
}
