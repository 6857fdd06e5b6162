//! Changes of a running target: removes subsystems, hosts, keys and listeners while it serves
//! others.
//!
//! A change and a Connect may run at the same time. A change is first recorded and then applied to
//! the controllers in the registry. A Connect enters the registry and checks the recorded changes
//! again, both under the registry's lock ([`Target::check_present`]). So either the Connect sees
//! the change, or the change finds the controller.

use super::connect::{ConnectFailure, Wanted};
use super::{Registry, Target, Transport};
use crate::subsystem::{HostAccess, Subsystem};
use nvme::fabrics::ConnectInvalid;
use nvme::{Nqn, Status};
use std::net::SocketAddr;
use std::sync::Arc;

impl Target {
    /// Removes a subsystem, ends its controllers and notifies discovery controllers. Returns the
    /// subsystem, if it existed.
    pub fn remove_subsystem(&self, nqn: &Nqn) -> Option<Arc<Subsystem>> {
        let mut registry = self.registry();
        let subsystem = registry.subsystems.remove(nqn)?;
        for controller in registry.controllers.values() {
            if Arc::ptr_eq(controller.subsystem(), &subsystem) {
                controller.drop_all();
            }
        }
        drop(registry);
        self.note_discovery_changed();
        Some(subsystem)
    }

    /// Replaces the hosts that may use a subsystem, ends the controllers of hosts that no longer
    /// may, and notifies discovery controllers. Returns the number of ended controllers.
    pub fn set_access(&self, subsystem: &Arc<Subsystem>, access: HostAccess) -> usize {
        subsystem.set_access(access);
        let registry = self.registry();
        let mut ended = 0;
        for controller in registry.controllers.values() {
            let is_of_it = Arc::ptr_eq(controller.subsystem(), subsystem);
            if is_of_it && !subsystem.allows(controller.host_name()) {
                controller.drop_all();
                ended += 1;
            }
        }
        drop(registry);
        self.note_discovery_changed();
        ended
    }

    /// Ends the controllers of a host, for example after its key has changed. The host may connect
    /// again. Returns the number of ended controllers.
    pub fn drop_host(&self, host: &Nqn) -> usize {
        let registry = self.registry();
        let of_host = registry.controllers.values().filter(|it| it.host_name() == Some(host));
        of_host.map(|controller| controller.drop_all()).count()
    }

    /// Stops requiring a proof from a host. Returns whether it had to give one.
    pub fn forget_proof(&self, host: &Nqn) -> bool {
        let had_one = self.registry().proofs.remove(host).is_some();
        self.generated.forget(host);
        had_one
    }

    /// Removes a host's TLS key, so that the host can no longer connect. A target that requires TLS
    /// still requires it when no key is left. Returns whether the host had a key.
    pub fn forget_tls(&self, host: &Nqn) -> bool {
        let had_one = self.keyring.remove(host);
        self.note_discovery_changed();
        had_one
    }

    /// Removes an address from those that the discovery log contains.
    pub(crate) fn remove_listener(&self, address: SocketAddr, transport: Transport) {
        self.registry().listeners.retain(|listener| *listener != (address, transport));
        self.note_discovery_changed();
    }

    /// Checks again, under the lock that a new controller takes to enter the registry, that its
    /// subsystem still exists and that its host may still use it.
    pub(super) fn check_present(
        &self,
        registry: &Registry,
        wanted: &Wanted,
        subsystem: &Arc<Subsystem>,
    ) -> Result<(), ConnectFailure> {
        if subsystem.is_discovery() {
            return Ok(());
        }
        let known = registry.subsystems.get(&wanted.subsystem_name);
        if !known.is_some_and(|known| Arc::ptr_eq(known, subsystem)) {
            return Err(ConnectInvalid::SUBNQN.into());
        }
        if !subsystem.allows(wanted.host_name.as_ref()) {
            self.admissions.note_refused();
            return Err(Status::CONNECT_INVALID_HOST.into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::Controller;
    use crate::signal::{self, Signal};
    use crate::target::{Attached, Link};
    use crate::{AdmissionMode, Admissions, Limits};
    use nvme::fabrics::{Connect, ConnectData};
    use nvme::{ControllerId, HostId, QueueId};
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    fn connect(
        target: &Arc<Target>,
        subsystem: &Nqn,
        signal: &Arc<Signal>,
    ) -> Option<Box<Controller>> {
        let connect = Connect { qid: QueueId(0), sq_entries: 32, cattr: 0, keep_alive_ms: 0 };
        let id = HostId([7; 16]);
        let data = ConnectData::new(id, ControllerId::DYNAMIC, subsystem, &Nqn::from_uuid(id.0));
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let link = Link {
            signal,
            local_address: address,
            peer_address: address,
            tls_identity: None,
            transport: Transport::Tcp,
        };
        let sqe = connect.encode().unwrap();
        match target.connect(&sqe, data.bytes(), &link, reactor::time::now()).ok()?.attached {
            Attached::Admin(controller) => Some(controller),
            Attached::Io(_) => None,
        }
    }

    /// Goal: when a Connect runs beside a change of hosts or the end of its subsystem, no
    /// controller stays without an order to end.
    #[test]
    fn no_connect_slips_through_a_change() {
        let limits = Limits { controllers_max: 100, ..Limits::default() };
        let target = Target::new(limits, Admissions::new(AdmissionMode::AnyHost)).unwrap();
        let name = Nqn::new("nqn.2026-01.io.tsumugi:disk").unwrap();
        let (is_over, rounds) = (AtomicBool::new(false), [const { AtomicU64::new(0) }; 3]);
        std::thread::scope(|scope| {
            for round in &rounds {
                let (target, name, is_over) = (&target, &name, &is_over);
                scope.spawn(move || {
                    let mut last = None;
                    while !is_over.load(Ordering::SeqCst) {
                        let signal = Arc::<Signal>::default();
                        if let Some(controller) = connect(target, name, &signal) {
                            last = Some((controller, signal));
                        } else if last.as_ref().is_some_and(|(_, it)| it.is_raised(signal::CLOSE)) {
                            last = None;
                        }
                        round.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
            let settle = || {
                let before: Vec<u64> = rounds.iter().map(|it| it.load(Ordering::SeqCst)).collect();
                while rounds
                    .iter()
                    .zip(&before)
                    .any(|(it, old)| it.load(Ordering::SeqCst) < old + 2)
                {
                    std::thread::yield_now();
                }
            };
            let no_host = HostAccess::List([Nqn::from_uuid([9; 16])].into());
            let mut kept = 0;
            for round in 0..300 {
                let subsystem = Subsystem::new(name.clone(), "serial", "model", HostAccess::Any);
                let subsystem = target.add_subsystem(subsystem).unwrap();
                std::thread::yield_now();
                if round % 2 == 0 {
                    target.set_access(&subsystem, no_host.clone());
                } else {
                    target.remove_subsystem(&name);
                }
                settle();
                kept += target.controllers().len();
                target.remove_subsystem(&name);
            }
            is_over.store(true, Ordering::SeqCst);
            assert_eq!(kept, 0, "controllers of hosts that may not connect");
        });
    }
}
