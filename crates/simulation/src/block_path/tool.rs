//! A tool's requests to a target: discovery, log pages, features, namespaces. The correct answer to
//! each is known.

use super::{GUEST, NAMESPACE, NQN, PORT, Shared};
use crate::random::Random;
use host::{ConnectOptions, Controller, ControllerEvent, Error};
use nvme::command::{Feature, FeatureSelect, GetLogPage, SetFeatures};
use nvme::feature::{AsyncEventConfig, QueueCounts, fid};
use nvme::log_page::{
    CommandEffects, DiscoveryEntry, ErrorEntry, SmartHealth, SupportedPages, lid, subsystem_type,
};
use nvme::opcode::{AdminOpcode, NvmOpcode};
use nvme::{Nqn, Nsid, Status, SubmissionQueueEntry};
use reactor::time::{sleep, timeout};
use std::rc::Rc;
use std::time::Duration;

/// Longest pause between two requests, in milliseconds.
const PAUSE_MAX_MS: u64 = 2_000;
/// How long the tool waits for an event.
const EVENT_PATIENCE: Duration = Duration::from_millis(500);
/// A log page that our target does not have.
const NO_PAGE: u8 = 0xc7;
/// An admin command that our target does not have.
const NO_COMMAND: AdminOpcode = AdminOpcode(0xc0);
/// Number of error log entries that are read.
const ERRORS: usize = 64;

/// A tool on the host's machine.
pub(super) struct Tool {
    shared: Rc<Shared>,
    controller: Controller,
    random: Random,
    /// The connection over which the health page was last read, and the number of commands that it
    /// showed.
    health: Option<(u64, u128)>,
}

impl Tool {
    pub(super) fn new(shared: &Rc<Shared>, controller: &Controller, random: Random) -> Tool {
        Tool { shared: Rc::clone(shared), controller: controller.clone(), random, health: None }
    }

    pub(super) async fn run(mut self) {
        while !self.shared.is_over.get() {
            let asked = match self.random.below(8) {
                0 => self.discover().await,
                1 => self.supported_pages().await,
                2 => self.health().await,
                3 => self.errors().await,
                4 => self.effects().await,
                5 => self.features().await,
                6 => self.namespaces().await,
                _ => self.events().await,
            };
            self.shared.count("questions");
            match asked {
                Ok(()) => {}
                Err(error) if self.shared.has_faults() && is_of_connection(&error) => {}
                Err(error) => self.shared.violation(format!("a tool's question fails: {error}")),
            }
            sleep(Duration::from_millis(self.random.between(1, PAUSE_MAX_MS))).await;
        }
    }

    fn expect(&self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.shared.violation(what());
        }
    }

    /// Checks that the discovery log lists the subsystem and the discovery subsystem itself, with
    /// their address.
    async fn discover(&mut self) -> Result<(), Error> {
        let options = ConnectOptions::new(self.shared.address(), Nqn::discovery());
        let controller = Controller::connect_discovery(options).await?;
        let log = controller.discover().await?;
        let mut found: Vec<(String, u8)> = Vec::new();
        for entry in &log.entries {
            let name =
                entry.subsystem_nqn().map_or_else(|error| error.to_string(), |nqn| nqn.to_string());
            let place = (entry.address(), entry.service());
            let expected = (self.shared.machine.address().to_string(), PORT.to_string());
            self.expect(place == expected, || format!("discovery names {place:?}"));
            found.push((name, entry.subtype));
        }
        let discovery = (Nqn::discovery().to_string(), subsystem_type::CURRENT_DISCOVERY);
        let expected = [(NQN.to_owned(), subsystem_type::NVM), discovery];
        self.expect(found == expected, || format!("discovery finds {found:?}"));
        // Read in pieces, the page must be the same.
        let bytes = DiscoveryEntry::BYTES * log.entries.len();
        let page = controller.log_page(lid::DISCOVERY, Nsid(0), 1024, bytes).await?;
        let whole: Vec<u8> = log.entries.iter().flat_map(DiscoveryEntry::bytes).copied().collect();
        self.expect(page == whole, || "the discovery log differs when read again".to_owned());
        let health = controller.log_page(lid::SMART_HEALTH, Nsid(0), 0, 512).await;
        self.expect_refusal("health of a discovery controller", &health, Status::INVALID_LOG_PAGE)?;
        controller.disconnect().await
    }

    /// Requires that an answer is a refusal with this status. Returns errors of the connection.
    fn expect_refusal<T>(
        &self,
        what: &str,
        answer: &Result<T, Error>,
        status: Status,
    ) -> Result<(), Error> {
        match answer {
            Err(Error::Refused { status: found, .. }) if found.is(status) => Ok(()),
            Err(error) if is_of_connection(error) => Err(error.clone()),
            Err(error) => {
                self.shared.violation(format!("{what}: {error}"));
                Ok(())
            }
            Ok(_) => {
                self.shared.violation(format!("{what} is answered"));
                Ok(())
            }
        }
    }

    /// Checks that exactly the pages that are reported as supported can be read.
    async fn supported_pages(&mut self) -> Result<(), Error> {
        let page = self.page(lid::SUPPORTED_PAGES, SupportedPages::BYTES).await?;
        let Ok(pages) = SupportedPages::from_prefix(&page) else { return Ok(()) };
        for lid in [lid::FIRMWARE_SLOTS, lid::ERROR, lid::COMMAND_EFFECTS] {
            self.expect(pages.has(lid), || format!("log page {lid:#x} is not supported"));
            self.page(lid, 64).await?;
        }
        for lid in [lid::DISCOVERY, lid::ANA, NO_PAGE] {
            self.expect(!pages.has(lid), || format!("log page {lid:#x} is supported"));
            let answer = self.page(lid, 64).await;
            self.expect_refusal(
                "a log page that is not supported",
                &answer,
                Status::INVALID_LOG_PAGE,
            )?;
        }
        for request in [
            GetLogPage { lid: lid::ERROR, dwords: 1, offset: 2, ..GetLogPage::default() },
            GetLogPage { lid: lid::ERROR, dwords: 1, offset: 1 << 20, ..GetLogPage::default() },
        ] {
            let sqe = encode(&request);
            let answer = self.controller.admin_command("Get Log Page", sqe, 4).await;
            self.expect_refusal("a log page past its end", &answer, Status::INVALID_FIELD)?;
        }
        Ok(())
    }

    async fn page(&self, lid: u8, bytes: usize) -> Result<Vec<u8>, Error> {
        self.controller.log_page(lid, Nsid(0), 0, bytes).await
    }

    /// Checks that counts of commands only grow while the target lives.
    async fn health(&mut self) -> Result<(), Error> {
        let reconnects = self.controller.reconnects();
        let page = self.page(lid::SMART_HEALTH, SmartHealth::BYTES).await?;
        let Ok(health) = SmartHealth::from_prefix(&page) else { return Ok(()) };
        let commands = health.hrc.get() + health.hwc.get();
        self.expect(health.cw == 0 && health.mdie.get() == 0, || format!("health is {health:?}"));
        // Another connection may lead to another life of the target, which counts from zero.
        let counted =
            (reconnects == self.controller.reconnects()).then_some((reconnects, commands));
        if let (Some((before, least)), Some((now, commands))) = (self.health, counted)
            && before == now
        {
            self.expect(least <= commands, || format!("{commands} commands, before {least}"));
        }
        self.health = counted;
        let one = self.controller.log_page(lid::SMART_HEALTH, NAMESPACE, 0, 512).await;
        self.expect_refusal("health of one namespace", &one, Status::INVALID_FIELD)
    }

    /// Checks that a failed command is in the error log, and that the newest entry comes first.
    async fn errors(&mut self) -> Result<(), Error> {
        let reconnects = self.controller.reconnects();
        let sqe = SubmissionQueueEntry::admin(NO_COMMAND, Nsid(0));
        let answer = self.controller.admin_command("an unknown command", sqe, 0).await;
        self.expect_refusal("an unknown command", &answer, Status::INVALID_OPCODE)?;
        let page = self.page(lid::ERROR, ErrorEntry::BYTES * ERRORS).await?;
        let entries: Vec<&ErrorEntry> = page
            .chunks_exact(ErrorEntry::BYTES)
            .filter_map(|bytes| ErrorEntry::from_prefix(bytes).ok())
            .take_while(|entry| entry.ecnt.get() > 0)
            .collect();
        let is_descending =
            entries.windows(2).all(|pair| pair[0].ecnt.get() == pair[1].ecnt.get() + 1);
        self.expect(is_descending, || format!("the error log is {entries:?}"));
        if self.controller.reconnects() == reconnects {
            let is_there =
                entries.iter().any(|entry| entry.opc == NO_COMMAND.0 && entry.sqid.get() == 0);
            self.expect(is_there, || format!("the error log lacks the last one: {entries:?}"));
        }
        Ok(())
    }

    /// Checks that exactly the commands that are reported as supported exist.
    async fn effects(&mut self) -> Result<(), Error> {
        let page = self.page(lid::COMMAND_EFFECTS, CommandEffects::BYTES).await?;
        let Ok(effects) = CommandEffects::from_prefix(&page) else { return Ok(()) };
        let admin = |opcode: AdminOpcode| effects.acs[usize::from(opcode.0)].get();
        let io = |opcode: NvmOpcode| effects.iocs[usize::from(opcode.0)].get();
        let of_namespace = CommandEffects::SUPPORTED | CommandEffects::SCOPE_NAMESPACE;
        let of_controller = CommandEffects::SUPPORTED | CommandEffects::SCOPE_CONTROLLER;
        let is_right = admin(AdminOpcode::IDENTIFY) == of_controller
            && admin(NO_COMMAND) == 0
            && io(NvmOpcode::READ) == of_namespace
            && io(NvmOpcode::WRITE) == of_namespace | CommandEffects::LOGICAL_BLOCK_CONTENT_CHANGE;
        self.expect(is_right, || "the effects of commands are wrong".to_owned());
        Ok(())
    }

    async fn get(
        &self,
        fid: u8,
        select: FeatureSelect,
        bytes: usize,
    ) -> Result<(u32, Vec<u8>), Error> {
        let dword11 = u32::from(fid == fid::HOST_ID);
        let sqe = Feature { fid, select, dword11 }.encode(Nsid(0));
        let (cqe, data) = self.controller.admin_command("Get Features", sqe, bytes).await?;
        Ok((cqe.dword0(), data.map(|data| data.to_vec()).unwrap_or_default()))
    }

    async fn set(&self, fid: u8, dword11: u32, is_saved: bool) -> Result<(), Error> {
        let sqe = SetFeatures { fid, is_saved, dword11, ..SetFeatures::default() }.encode(Nsid(0));
        self.controller.admin_command("Set Features", sqe, 0).await.map(drop)
    }

    async fn features(&mut self) -> Result<(), Error> {
        use FeatureSelect::{Current, Default, SupportedCapabilities};
        let reconnects = self.controller.reconnects();
        let (queues, _) = self.get(fid::NUMBER_OF_QUEUES, Current, 0).await?;
        let granted = self.controller.info().map(|info| u32::from(info.nr_io_queues));
        let events = AsyncEventConfig::NAMESPACE_ATTRIBUTES;
        let (config, _) = self.get(fid::ASYNC_EVENT_CONFIG, Current, 0).await?;
        let (keep_alive_ms, _) = self.get(fid::KEEP_ALIVE_TIMER, Current, 0).await?;
        if self.controller.reconnects() == reconnects {
            let found = QueueCounts::from_dword(queues);
            let is_right = granted.is_none_or(|granted| found == QueueCounts::pairs(granted));
            self.expect(is_right, || format!("{found:?} queues, granted {granted:?}"));
            self.expect(config & events != 0, || format!("events are configured as {config:#x}"));
            let expected = self.controller.options().keep_alive_tmo.as_millis();
            let is_right = u128::from(keep_alive_ms) == expected;
            self.expect(is_right, || format!("keep alive is {keep_alive_ms} ms, not {expected}"));
        }
        let (_, id) = self.get(fid::HOST_ID, Current, 16).await?;
        let own = self.controller.options().hostid.0;
        self.expect(id == own, || format!("the host is {id:?}, not {own:?}"));
        self.get(fid::TIMESTAMP, Current, 8).await?;
        self.expect(self.get(fid::VOLATILE_WRITE_CACHE, Current, 0).await?.0 == 1, || {
            "the write cache is said to be off".to_owned()
        });
        // Arbitration: no limit of a burst.
        for (fid, expected) in
            [(fid::KEEP_ALIVE_TIMER, 0), (fid::ARBITRATION, 7), (fid::ERROR_RECOVERY, 0)]
        {
            let (found, _) = self.get(fid, Default, 0).await?;
            self.expect(found == expected, || format!("default of {fid:#x} is {found:#x}"));
        }
        let (capabilities, _) = self.get(fid::TIMESTAMP, SupportedCapabilities, 0).await?;
        self.expect(capabilities == 4, || format!("a timestamp can be {capabilities:#x}"));
        self.refused_features().await
    }

    async fn refused_features(&mut self) -> Result<(), Error> {
        for (fid, value, is_saved, status) in [
            (fid::VOLATILE_WRITE_CACHE, 0, false, Status::FEATURE_NOT_CHANGEABLE),
            (fid::ARBITRATION, 1, false, Status::FEATURE_NOT_CHANGEABLE),
            (fid::KEEP_ALIVE_TIMER, u32::MAX, false, Status::KEEP_ALIVE_INVALID),
            (fid::KEEP_ALIVE_TIMER, 1, true, Status::FEATURE_NOT_SAVEABLE),
            (fid::NUMBER_OF_QUEUES, 0, false, Status::COMMAND_SEQUENCE_ERROR),
            (fid::HOST_ID, 1, false, Status::COMMAND_SEQUENCE_ERROR),
            (fid::ASYNC_EVENT_CONFIG, u32::MAX, false, Status::INVALID_FIELD),
            (NO_PAGE, 0, false, Status::INVALID_FIELD),
        ] {
            let answer = self.set(fid, value, is_saved).await;
            self.expect_refusal(&format!("feature {fid:#x} set to {value}"), &answer, status)?;
        }
        let answer = self.get(NO_PAGE, FeatureSelect::Current, 0).await;
        self.expect_refusal("an unknown feature", &answer, Status::INVALID_FIELD)
    }

    /// Checks that the namespace is there under its name; the guest may be there too.
    async fn namespaces(&mut self) -> Result<(), Error> {
        let ids = self.controller.namespace_ids().await?;
        let is_known = ids == [NAMESPACE] || ids == [NAMESPACE, GUEST];
        self.expect(is_known, || format!("the namespaces are {ids:?}"));
        let identity = self.controller.namespace_identity(NAMESPACE).await?;
        let uuid = identity.uuid.map(uuid::Uuid::into_bytes);
        self.expect(uuid == Some([7; 16]), || format!("the namespace is {identity:?}"));
        let identify = self.controller.identify_namespace(NAMESPACE).await?;
        let bytes = identify.nsze.get() << identify.block_shift().unwrap_or_default();
        let expected = self.shared.parameters.device_bytes();
        self.expect(bytes == expected, || format!("it has {bytes} bytes, not {expected}"));
        match self.controller.identify_namespace(Nsid(3)).await {
            Err(Error::NoSuchNamespace(_)) => Ok(()),
            Err(error) if is_of_connection(&error) => Err(error),
            other => {
                self.shared.violation(format!("namespace 3 is {other:?}"));
                Ok(())
            }
        }
    }

    /// Checks that each event of the controller is a possible one.
    async fn events(&mut self) -> Result<(), Error> {
        while let Ok(event) = timeout(EVENT_PATIENCE, self.controller.next_event()).await {
            self.shared.log(|| format!("event {event:?}"));
            self.shared.count("events");
            let may_be = match &event {
                ControllerEvent::NamespacesChanged(changed) => {
                    changed.is_empty() || changed == &[GUEST]
                }
                ControllerEvent::Disconnected(_) | ControllerEvent::Reconnected => {
                    self.shared.has_faults()
                }
                _ => false,
            };
            self.expect(may_be, || format!("the controller reports {event:?}"));
        }
        Ok(())
    }
}

fn encode(request: &GetLogPage) -> SubmissionQueueEntry {
    request.encode(Nsid(0)).expect("a length that is possible")
}

/// Returns whether an error concerns the connection only.
fn is_of_connection(error: &Error) -> bool {
    error.is_connection_error() || matches!(error, Error::DeadlineExceeded(_))
}
