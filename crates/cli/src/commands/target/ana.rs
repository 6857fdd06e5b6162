//! What a target reports of asymmetric access, from its settings.

use super::config::SubsystemSettings;
use anyhow::{Context, bail};
use nvme::ControllerId;
use nvme::log_page::AnaState;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use target::AnaGroupId;

/// Splits the value of `--ana`.
pub(super) fn parse(text: &str) -> Result<(String, String), String> {
    let (group, state) = text
        .split_once('=')
        .ok_or_else(|| format!("{text:?}: write GROUP=STATE, e.g. 1=inaccessible"))?;
    state_of(group, state).map_err(|error| format!("{error:#}"))?;
    Ok((group.into(), state.into()))
}

fn state_of(group: &str, state: &str) -> anyhow::Result<(AnaGroupId, AnaState)> {
    let group: AnaGroupId = group.parse().map_err(anyhow::Error::msg)?;
    let state = AnaState::from_name(state).with_context(|| {
        let names = AnaState::ALL.map(AnaState::name).join(", ");
        format!("{state:?} is no ANA state: there are {names}")
    })?;
    Ok((group, state))
}

/// The states of a subsystem's groups; [`None`] if nothing of asymmetric access is set: then nothing is reported.
pub(super) fn states(
    settings: &SubsystemSettings,
) -> anyhow::Result<Option<BTreeMap<AnaGroupId, AnaState>>> {
    let mut states = BTreeMap::new();
    for (group, state) in &settings.ana {
        let (group, state) = state_of(group, state)?;
        if states.insert(group, state).is_some() {
            bail!("{group} has two states");
        }
    }
    let mut has_groups = !states.is_empty();
    for number in settings.namespaces.iter().filter_map(|namespace| namespace.ana_group) {
        group(Some(number))?;
        has_groups = true;
    }
    Ok(has_groups.then_some(states))
}

/// A namespace's group.
pub(super) fn group(number: Option<u32>) -> anyhow::Result<AnaGroupId> {
    let Some(number) = number else { return Ok(AnaGroupId::DEFAULT) };
    number.to_string().parse().map_err(anyhow::Error::msg)
}

/// The identifiers that controllers may get.
pub(super) fn controller_ids(min: Option<u16>, max: Option<u16>) -> RangeInclusive<u16> {
    min.unwrap_or(1)..=max.unwrap_or(ControllerId::MAX.get())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: states are read by the names of the Linux target, and nothing is set where nothing is given.
    #[test]
    fn states_are_read() {
        let text = "[[namespace]]\nmemory = \"4M\"\n";
        let of = |text: &str| states(&toml::from_str(text).unwrap());
        assert_eq!(of(text).unwrap(), None);
        let group = AnaGroupId::new(7).unwrap();
        let named = format!("ana = {{ 7 = \"non-optimized\" }}\n{text}");
        assert_eq!(of(&named).unwrap().unwrap()[&group], AnaState::NonOptimized);
        assert!(of(&format!("{text}ana_group = 7\n")).unwrap().unwrap().is_empty());
        assert!(of(&format!("{text}ana_group = 129\n")).is_err());
        assert!(of(&format!("ana = {{ 1 = \"good\" }}\n{text}")).is_err());
        assert_eq!(parse("3=change").unwrap(), ("3".into(), "change".into()));
        for wrong in ["3", "0=change", "129=optimized", "1=best", "=optimized"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
