//! Turns the keys of a file into an experiment, or says which line and key is wrong.

use super::raw::{RawComparison, RawExperiment, RawLimits, RawMargins, RawQuick, RawTiming};
use super::{
    CONDITION_CELLS_MAX, Comparison, Experiment, Limits, Margins, Mode, QUICK_CONDITION_CELLS_MAX,
    ROUNDS_MAX, Timing,
};
use crate::error::Error;
use base::messages::Language;
use base::statistics::LookRule;
use loads::engines::EngineKind;
use loads::keys::{Placed, Source};
use loads::level::{Level, Storage};
use loads::levels::{self, RawLevel};
use loads::workload::Workload;
use loads::workloads::workloads;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const THROUGHPUT_PERCENT_DEFAULT: f64 = 5.0;
const LATENCY_PERCENT_DEFAULT: f64 = 10.0;
const QUICK_RUN: Duration = Duration::from_secs(2);
const QUICK_ROUNDS: u32 = 6;

/// Returns the error of a placed value.
fn wrong<T>(source: Source, at: &Placed<T>, key: &str, message: impl Into<String>) -> Error {
    source.error(&at.span(), key, message).into()
}

/// Checks all of it.
pub(super) fn check(raw: RawExperiment, text: &str, mode: Mode) -> Result<Experiment, Error> {
    let source = Source(text);
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
    };
    if !is_name(raw.name.get_ref()) {
        return Err(wrong(source, &raw.name, "name", "use letters, digits, '-', '_' and '.'"));
    }
    let engine = source.choose(&raw.engine, "engine", &EngineKind::all())?;
    let quick = raw.quick.as_ref().map(Placed::get_ref).filter(|_| mode == Mode::Quick);
    let factors = factors(source, &raw.factors, engine)?;
    let own = quick.filter(|quick| !quick.workload.is_empty());
    let listed = own.map_or(&raw.workload, |quick| &quick.workload);
    let (table, file_size) = match quick.and_then(|quick| quick.file_size.as_ref()) {
        Some(size) => ("quick.file-size", size),
        None => ("file-size", &raw.file_size),
    };
    let file_bytes = source.bytes(file_size, table)?;
    let workloads = workloads(source, listed, engine, (file_size, file_bytes))?;
    let language = raw.language.as_ref();
    let language = language.map(|it| source.choose(it, "language", Language::ALL)).transpose()?;
    let comparisons = comparisons(source, &raw.comparison, &factors)?;
    let experiment = Experiment {
        name: raw.name.get_ref().clone(),
        engine,
        seed: raw.seed,
        mode,
        file_bytes,
        timing: timing(source, &raw.timing, (engine, mode), quick)?,
        limits: limits(source, &raw.limits)?,
        margins: margins(source, &raw.margins)?,
        cpu_hosts: cpu_hosts(source, &raw.cpu.hosts)?,
        comparisons: chosen(source, comparisons, &raw.comparison, quick)?,
        factors,
        workloads,
        title: raw.title,
        question: raw.question,
        source: raw.source,
        language: language.unwrap_or_default(),
        text: text.into(),
    };
    check_size(source, &experiment, raw.quick.as_ref(), &raw.name)?;
    Ok(experiment)
}

fn cpu_hosts(source: Source, raw: &[Placed<String>]) -> Result<Vec<String>, Error> {
    match raw.iter().find(|host| !crate::cpu::hosts::is_name(host.get_ref())) {
        Some(host) => Err(wrong(source, host, "cpu.hosts", "is no name for ssh, like user@host")),
        None => Ok(raw.iter().map(|host| host.get_ref().clone()).collect()),
    }
}

fn check_size(
    source: Source,
    experiment: &Experiment,
    quick: Option<&Placed<RawQuick>>,
    name: &Placed<String>,
) -> Result<(), Error> {
    let named = experiment.comparisons.iter().flat_map(|it| [&it.baseline, &it.other]);
    let conditions = match named.collect::<BTreeSet<_>>().len() {
        0 => experiment.factors.values().map(BTreeMap::len).product(),
        named => named,
    };
    let points = |load: &Workload| {
        let rates = load.rates.len() * load.batches.len();
        load.block_sizes.len() * load.jobs.len() * load.depths.len() * rates
    };
    let count = conditions * experiment.workloads.iter().map(points).sum::<usize>();
    if experiment.mode == Mode::Quick && count > QUICK_CONDITION_CELLS_MAX {
        let message = format!(
            "a quick form may have {QUICK_CONDITION_CELLS_MAX} condition-cells, this has {count}: \
             list fewer points in [[quick.workload]]"
        );
        return Err(match quick {
            Some(quick) => wrong(source, quick, "quick", message),
            None => wrong(source, name, "quick", message),
        });
    }
    if count > CONDITION_CELLS_MAX {
        let message = format!("{count} condition-cells, at most {CONDITION_CELLS_MAX} are allowed");
        return Err(wrong(source, name, "workload", message));
    }
    Ok(())
}

/// `quick` is the file's own table of a quick form, if it has one and is asked for it.
fn timing(
    source: Source,
    raw: &RawTiming,
    (engine, mode): (EngineKind, Mode),
    quick: Option<&RawQuick>,
) -> Result<Timing, Error> {
    let mut run = source.time(&raw.run, "timing.run")?;
    let mut ramp = match &raw.ramp {
        Some(ramp) => source.time(ramp, "timing.ramp")?,
        None => Duration::ZERO,
    };
    let mut warm_up_rounds = raw.warm_up_rounds.unwrap_or(1);
    let mut looks = match &raw.looks {
        Some(looks) => {
            let is_sane = looks.get_ref().iter().all(|n| (6..=ROUNDS_MAX).contains(n));
            let rule = LookRule::new(looks.get_ref().clone()).filter(|_| is_sane);
            rule.ok_or_else(|| {
                let message = format!("numbers of rounds have to grow, from 6 to {ROUNDS_MAX}");
                wrong(source, looks, "timing.looks", message)
            })?
        }
        None => LookRule::default(),
    };
    if mode == Mode::Quick {
        run = QUICK_RUN;
        ramp = Duration::ZERO;
        let mut rounds = QUICK_ROUNDS;
        if let Some(quick) = quick {
            if let Some(time) = &quick.run {
                run = source.time(time, "quick.run")?;
            }
            if let Some(time) = &quick.ramp {
                ramp = source.time(time, "quick.ramp")?;
            }
            warm_up_rounds = quick.warm_up_rounds.unwrap_or(warm_up_rounds);
            if let Some(given) = &quick.rounds {
                rounds = *given.get_ref();
                if !(6..=ROUNDS_MAX).contains(&rounds) {
                    let message = "fewer than 6 rounds have no finite interval of a median";
                    return Err(wrong(source, given, "quick.rounds", message));
                }
            }
        }
        looks = LookRule::once(rounds);
    }
    // What was measured elsewhere took whatever time it took.
    if run < Duration::from_millis(100) && !engine.is_imported() {
        return Err(wrong(source, &raw.run, "timing.run", "a run takes at least 100ms"));
    }
    Ok(Timing { run, ramp, warm_up_rounds, looks })
}

fn limits(source: Source, raw: &RawLimits) -> Result<Limits, Error> {
    Ok(Limits {
        time: raw.time.as_ref().map(|it| source.time(it, "limits.time")).transpose()?,
        link_bytes_per_s: raw
            .link_rate
            .as_ref()
            .map(|it| source.bytes(it, "limits.link-rate"))
            .transpose()?,
        container_rate: raw.container_rate,
        written_bytes: raw
            .written
            .as_ref()
            .map(|it| source.bytes(it, "limits.written"))
            .transpose()?,
    })
}

fn margins(source: Source, raw: &RawMargins) -> Result<Margins, Error> {
    let margin = |given: &Option<Placed<f64>>, default: f64, key| match given {
        Some(percent) if !(0.1..=100.0).contains(percent.get_ref()) => {
            Err(wrong(source, percent, key, "a margin lies between 0.1 and 100 percent"))
        }
        given => Ok((given.as_ref().map_or(default, |it| *it.get_ref()) / 100.0).ln_1p()),
    };
    Ok(Margins {
        throughput: margin(
            &raw.throughput_percent,
            THROUGHPUT_PERCENT_DEFAULT,
            "margins.throughput-percent",
        )?,
        latency: margin(&raw.latency_percent, LATENCY_PERCENT_DEFAULT, "margins.latency-percent")?,
    })
}

type Factors = BTreeMap<String, BTreeMap<String, Level>>;

fn factors(
    source: Source,
    raw: &BTreeMap<String, BTreeMap<String, Placed<RawLevel>>>,
    engine: EngineKind,
) -> Result<Factors, Error> {
    let mut factors = Factors::new();
    for (factor, raw_levels) in raw {
        let mut levels = BTreeMap::new();
        for (name, level) in raw_levels {
            let key = format!("factors.{factor}.{name}");
            let checked = levels::level(source, &key, name, level)?;
            if let Some(message) = engine.mismatch(&checked) {
                return Err(levels::kind_error(source, &key, level, message).into());
            }
            levels.insert(name.clone(), checked);
        }
        factors.insert(factor.clone(), levels);
    }
    Ok(factors)
}

/// The comparisons of a quick form: those that it names, or all.
fn chosen(
    source: Source,
    all: Vec<Comparison>,
    raw: &[Placed<RawComparison>],
    quick: Option<&RawQuick>,
) -> Result<Vec<Comparison>, Error> {
    let Some(wanted) = quick.and_then(|quick| quick.comparisons.as_ref()) else { return Ok(all) };
    let names: Vec<&String> = raw.iter().map(|raw| &raw.get_ref().name).collect();
    if let Some(unknown) = wanted.get_ref().iter().find(|name| !names.contains(name)) {
        let message = format!("there is no comparison {unknown:?}");
        return Err(wrong(source, wanted, "quick.comparisons", message));
    }
    let is_wanted = |(_, name): &(Comparison, &String)| wanted.get_ref().contains(name);
    Ok(all.into_iter().zip(names).filter(is_wanted).map(|(comparison, _)| comparison).collect())
}

/// The change of the files at risk in a comparison of copies for containers, for its name: so no table or
/// sentence shows the speed alone.
fn risk_change(factors: &Factors, raw: &RawComparison) -> String {
    let risk = |side: &BTreeMap<String, String>| {
        side.iter().find_map(|(factor, level)| {
            match factors.get(factor)?.get(level)?.storage()? {
                Storage::Layers(scheme) => Some(scheme.risk().short()),
                _ => None,
            }
        })
    };
    match (risk(raw.baseline.get_ref()), risk(raw.other.get_ref())) {
        (Some(from), Some(to)) if from == to => format!(" (at risk: {to})"),
        (Some(from), Some(to)) => format!(" (at risk: {from} → {to})"),
        _ => String::new(),
    }
}

fn comparisons(
    source: Source,
    raw: &[Placed<RawComparison>],
    factors: &Factors,
) -> Result<Vec<Comparison>, Error> {
    let mut names = BTreeSet::new();
    let mut comparisons = Vec::new();
    for placed in raw {
        let raw = placed.get_ref();
        let key = |what: &str| format!("comparison {:?}: {what}", raw.name);
        if !names.insert(&raw.name) {
            return Err(wrong(source, placed, &key("name"), "there is another one"));
        }
        for (what, side) in [("baseline", &raw.baseline), ("other", &raw.other)] {
            for (factor, levels) in factors {
                let level = side.get_ref().get(factor);
                if level.is_none_or(|level| !levels.contains_key(level)) {
                    let known: Vec<_> = levels.keys().map(String::as_str).collect();
                    let message = format!("{factor} has to be one of {}", known.join(", "));
                    return Err(wrong(source, side, &key(what), message));
                }
            }
            if let Some(unknown) = side.get_ref().keys().find(|name| !factors.contains_key(*name)) {
                return Err(wrong(source, side, &key(what), format!("no factor {unknown:?}")));
            }
        }
        if raw.baseline.get_ref() == raw.other.get_ref() {
            return Err(wrong(source, &raw.other, &key("other"), "is the baseline itself"));
        }
        comparisons.push(Comparison {
            name: raw.name.clone() + &risk_change(factors, raw),
            role: raw.role.clone(),
            baseline: raw.baseline.get_ref().clone(),
            other: raw.other.get_ref().clone(),
            published: raw.published.clone(),
        });
    }
    Ok(comparisons)
}
