//! The ANA states that a target reports, from its settings.

use super::config::SubsystemSettings;
use anyhow::{Context, bail};
use nvme::ControllerId;
use nvme::log_page::AnaState;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use target::{ANA_GROUPS_MAX, AnaGroupId};

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
        format!("{state:?} is not an ANA state: the states are {names}")
    })?;
    Ok((group, state))
}

/// Returns the states of a subsystem's groups, or [`None`] if no setting concerns ANA: the target
/// then reports nothing.
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

impl SubsystemSettings {
    /// Sets states of groups, by the groups' numbers; the other groups keep their states.
    pub(super) fn set_ana(&mut self, states: &BTreeMap<String, String>) -> anyhow::Result<()> {
        if states.is_empty() {
            bail!("give at least one GROUP=STATE, e.g. 1=inaccessible");
        }
        let mut groups = BTreeSet::new();
        for (group, state) in states {
            let (group, state) = state_of(group, state)?;
            if !groups.insert(group) {
                bail!("{group} has two states");
            }
            self.ana.retain(|other, _| other.parse() != Ok(group));
            self.ana.insert(group.get().to_string(), state.name().into());
        }
        Ok(())
    }
}

/// Returns the groups of a subsystem that must change, with their new states. `reported` is the
/// state that hosts see now, if they see any.
///
/// # Errors
/// If a state is not valid.
pub(super) fn changes(
    settings: &SubsystemSettings,
    reported: impl Fn(AnaGroupId) -> Option<AnaState>,
) -> anyhow::Result<Vec<(AnaGroupId, AnaState)>> {
    let wanted = states(settings)?.unwrap_or_default();
    let groups = (1..=ANA_GROUPS_MAX).filter_map(AnaGroupId::new);
    let of = |group| {
        let state = wanted.get(&group).copied().unwrap_or(AnaState::Optimized);
        reported(group).filter(|known| *known != state).map(|_| (group, state))
    };
    Ok(groups.filter_map(of).collect())
}

/// Returns the group of a namespace.
pub(super) fn group(number: Option<u32>) -> anyhow::Result<AnaGroupId> {
    let Some(number) = number else { return Ok(AnaGroupId::DEFAULT) };
    number.to_string().parse().map_err(anyhow::Error::msg)
}

/// Returns the identifiers that the target may give to controllers.
pub(super) fn controller_ids(min: Option<u16>, max: Option<u16>) -> RangeInclusive<u16> {
    min.unwrap_or(1)..=max.unwrap_or(ControllerId::MAX.get())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: only groups with a different state are changed, groups that are no longer listed
    /// become optimized, and nothing changes where hosts see no states.
    #[test]
    fn differing_states_are_changed() {
        let group = |number| AnaGroupId::new(number).unwrap();
        let mut settings: SubsystemSettings =
            toml::from_str("ana = { 01 = \"change\", 3 = \"inaccessible\" }\n").unwrap();
        let now = |it: AnaGroupId| match it.get() {
            2 => Some(AnaState::NonOptimized),
            3 => Some(AnaState::Inaccessible),
            _ => Some(AnaState::Optimized),
        };
        let expected = [(group(1), AnaState::Change), (group(2), AnaState::Optimized)];
        assert_eq!(changes(&settings, now).unwrap(), expected);
        assert_eq!(changes(&settings, |_| None).unwrap(), []);
        settings.set_ana(&[("1".into(), "optimized".into())].into()).unwrap();
        assert_eq!(
            settings.ana.len(),
            2,
            "one state for each group, however its number was written"
        );
        assert_eq!(changes(&settings, now).unwrap(), expected[1..]);
    }

    /// Goal: states are read by the names of the Linux target, and without settings there are no
    /// states.
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
