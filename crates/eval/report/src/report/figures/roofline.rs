//! Bandwidth under its roofs (C9): the limits by link, device and latency, and the measured values.
//!
//! With N operations of a size in flight, each taking at least the latency of a single smallest one,
//! at most N × size / latency can flow (Little's law). So bandwidth over the bytes in flight lies below a
//! slope, and below the limits of device and link.

use super::{Figure, Source};
use crate::error::Error;
use crate::report::chart::{Dot, Join, Plot, Scale, Trail, plots};
use base::messages::Message;
use base::units;
use loads::metric::Metric;

/// The smallest number of different sums of bytes in flight.
const POINTS_MIN: usize = 3;
/// Most panels of a figure.
const PANELS_MAX: usize = 8;

/// Bytes under way, and bandwidth in bytes per second.
type Points = Vec<(f64, f64)>;

/// A condition's roofs: bytes, seconds.
struct Roofs {
    latency_s: f64,
    device: f64,
    link: Option<f64>,
}

impl Roofs {
    /// Returns the largest possible bandwidth with this number of bytes in flight.
    fn attainable(&self, bytes: f64) -> f64 {
        (bytes / self.latency_s).min(self.device).min(self.link.unwrap_or(f64::INFINITY))
    }
}

/// Draws a panel per condition.
pub(super) fn roofs(source: Source<'_>, workload: usize) -> Result<Option<Figure>, Error> {
    let Source { plan, language, .. } = source;
    let load = &plan.experiment.workloads[workload];
    if load.rates != [0] || !plan.experiment.engine.is_blocks() {
        return Ok(None);
    }
    let conditions = 0..plan.conditions.len();
    let told: Vec<(usize, Roofs, Points)> = conditions
        .filter_map(|it| {
            let (roofs, points) = measured(source, workload, it)?;
            Some((it, roofs, points))
        })
        .take(PANELS_MAX)
        .collect();
    if told.is_empty() {
        return Ok(None);
    }
    let rate = |bytes: f64| format!("{} MiB/s", units::significant(bytes / (1 << 20) as f64));
    let device = told.iter().map(|(_, roofs, _)| roofs.device).fold(0.0, f64::max);
    let mut said = language.say(Message::RoofDevice, &[("device", &rate(device))]);
    if let Some(link) = plan.experiment.limits.link_bytes_per_s {
        said.push_str(", ");
        said.push_str(&language.say(Message::RoofLink, &[("link", &rate(link as f64))]));
    }
    let panels: Vec<Plot> =
        told.iter().map(|(it, roofs, points)| plot(source, *it, roofs, points)).collect();
    Ok(Some(Figure {
        name: format!("c9-{}", load.name),
        caption: language.say(Message::RoofCaption, &[("workload", &load.name), ("roofs", &said)]),
        workload: Some(workload),
        svg: plots(&[], &panels, 2)?,
    }))
}

/// Returns the roofs, and points of bytes in flight and bandwidth; `None` with too few of them.
fn measured(source: Source<'_>, workload: usize, condition: usize) -> Option<(Roofs, Points)> {
    let Source { plan, analysis, .. } = source;
    let under_way = |cell: usize| {
        let cell = &plan.cells[cell];
        f64::from(cell.jobs * cell.depth) * cell.block_size as f64
    };
    let curve = |metric| analysis.curve(plan, workload, condition, metric);
    let points: Points = curve(Metric::Bandwidth)
        .iter()
        .map(|point| (under_way(point.cell), point.median))
        .collect();
    let mut places: Vec<f64> = points.iter().map(|(bytes, _)| *bytes).collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    if places.len() < POINTS_MIN {
        return None;
    }
    let latencies = curve(Metric::Latency);
    let least = latencies.iter().min_by(|a, b| under_way(a.cell).total_cmp(&under_way(b.cell)))?;
    let own = points.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    let device = analysis.local_peak(plan, workload, condition).unwrap_or(own);
    let link = plan.experiment.limits.link_bytes_per_s.map(|rate| rate as f64);
    // With one operation in flight this is its own time; with more, the wait of each.
    Some((Roofs { latency_s: least.median / 1e6, device, link }, points))
}

fn plot(source: Source<'_>, condition: usize, roofs: &Roofs, points: &[(f64, f64)]) -> Plot {
    let language = source.language;
    let mib = (1 << 20) as f64;
    let ends = points.iter().map(|(bytes, _)| bytes.log2());
    let (first, last) = (ends.clone().fold(f64::INFINITY, f64::min), ends.fold(0.0, f64::max));
    let ticks = first.floor() as i32..=last.ceil() as i32;
    let ticks = ticks.map(|it| (f64::from(it), units::bytes(1 << it)));
    let x = Scale::at(language.text(Message::AxisUnderWay), ticks.collect(), 0.3);
    let steps = 0..=64;
    let slope: Vec<(f64, f64)> = steps
        .map(|step| x.low + (x.high - x.low) * f64::from(step) / 64.0)
        .map(|place| (place, roofs.attainable(place.exp2()) / mib))
        .collect();
    let heights = points.iter().map(|(_, rate)| rate / mib).chain(slope.iter().map(|it| it.1));
    let y = Scale::decimal(source.unit(Metric::Bandwidth), heights);
    let roof = slope.iter().map(|(place, rate)| Dot::at(*place, rate.log10())).collect();
    let dots = points.iter().map(|(bytes, rate)| Dot::at(bytes.log2(), (rate / mib).log10()));
    let latency = units::significant(roofs.latency_s * 1e6);
    let label = &source.plan.conditions[condition].label;
    let trail = |join, has_shapes, dots| Trail { style: condition, join, has_shapes, dots };
    Plot {
        title: language.say(Message::RoofPanel, &[("condition", label), ("latency", &latency)]),
        x,
        y,
        shade: None,
        trails: vec![trail(Join::Dashed, false, roof), trail(Join::None, true, dots.collect())],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the smallest of latency, device and link is the limit.
    #[test]
    fn roofs_are_the_least_of_three() {
        let mut roofs = Roofs { latency_s: 1e-4, device: 1e9, link: None };
        assert!((roofs.attainable(4096.0) - 40_960_000.0).abs() < 1e-3);
        assert!((roofs.attainable(1e9) - 1e9).abs() < 1e-3);
        roofs.link = Some(5e8);
        assert!((roofs.attainable(1e9) - 5e8).abs() < 1e-3);
    }
}
