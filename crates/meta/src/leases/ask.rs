//! Clearance for calls: asking holders, barring inodes, taking answers.

use super::{
    Ask, AskId, Asked, Bar, Busy, CallId, Clearance, Demand, INVALIDATE_HOLDERS_MAX, Leases, Open,
    Waiting,
};
use protocol::client::Name;
use protocol::lease::Recall;
use protocol::{InodeId, Rights, SessionId};
use smallvec::SmallVec;

/// Rights that one message recalls. READ is never among rights that wait for commits. A recall of
/// LOCKS waits for the report of locks, so it waits with neither.
const CLASSES: [Rights; 3] =
    [Rights::READ, Rights(Rights::WRITE.0 | Rights::SIZE.0 | Rights::SOLE.0), Rights::LOCKS];

impl Leases {
    /// Returns whether `call` of `session` may be executed now; otherwise asks the holders and bars
    /// the inodes. `wants` are the WRITE and SIZE rights that the call will get: it waits while an
    /// earlier call of another session bars them.
    pub fn clear(
        &mut self,
        call: CallId,
        session: SessionId,
        demands: &[Demand],
        wants: &[(InodeId, Rights)],
    ) -> Clearance {
        let mut is_clear = true;
        let only = if reactor::mutant!("first-conflict-only") { 1 } else { usize::MAX };
        for demand in demands.iter().take(only) {
            is_clear &= match demand {
                Demand::Give(inode, rights) => self.demand_rights(call, session, *inode, *rights),
                Demand::Forget(inode, names) => self.demand_forget(call, session, *inode, names),
                Demand::ReportOpen(inode) => self.demand_open_report(call, session, *inode),
            };
        }
        for (inode, rights) in wants {
            is_clear &= self.wait_for_bars(call, session, *inode, *rights);
        }
        if is_clear {
            return Clearance::Clear;
        }
        // Barred from the first recall on, even where no session holds anything yet.
        for demand in demands.iter().filter(|_| !reactor::mutant!("nothing-barred")) {
            self.bar(call, session, demand.inode(), demand.bars());
        }
        Clearance::Wait
    }

    /// Records that the call was executed or given up: other sessions may get what it barred.
    pub fn done(&mut self, call: CallId) {
        let Some(waiting) = self.waiting.remove(&call) else { return };
        for inode in waiting.inodes {
            let Some(busy) = self.busy.get_mut(&inode) else { continue };
            busy.bars.retain(|bar| bar.call != call);
            busy.acquirers.retain(|acquirer| *acquirer != call);
            self.ready.append(&mut busy.acquirers);
            assert!(
                busy.bars.iter().all(|bar| self.waiting.contains_key(&bar.call)),
                "{inode} is barred by a call that is done: {busy:?}"
            );
            for ask in &busy.asks {
                if let Some(open) = self.asks.get_mut(ask) {
                    open.calls.retain(|waiter| *waiter != call);
                }
            }
            self.tidy(inode);
        }
    }

    /// Removes the state of an inode if nothing goes on there.
    fn tidy(&mut self, inode: InodeId) {
        let is_idle =
            |busy: &Busy| busy.bars.is_empty() && busy.asks.is_empty() && busy.acquirers.is_empty();
        if self.busy.get(&inode).is_some_and(is_idle) {
            self.busy.remove(&inode);
        }
    }

    /// Returns the state of a waiting call, and adds `inode` to it.
    fn waiting(&mut self, call: CallId, inode: InodeId) -> &mut Waiting {
        let next_order = &mut self.next_order;
        let waiting = self.waiting.entry(call).or_insert_with(|| {
            *next_order += 1;
            let order = *next_order;
            Waiting { order, inodes: SmallVec::new(), missing: 0, forgotten: Vec::new() }
        });
        if !waiting.inodes.contains(&inode) {
            waiting.inodes.push(inode);
        }
        waiting
    }

    fn bar(&mut self, call: CallId, session: SessionId, inode: InodeId, rights: Rights) {
        let order = self.waiting(call, inode).order;
        let bars = &mut self.busy.entry(inode).or_default().bars;
        match bars.iter_mut().find(|bar| bar.call == call) {
            Some(bar) => {
                assert!(
                    bar.session == session && bar.order == order,
                    "{call:?} of {session} bars {inode} as another's: {bar:?}"
                );
                bar.rights |= rights;
            }
            None => bars.push(Bar { call, session, rights, order }),
        }
    }

    /// Returns whether another session's call bars some of `rights`.
    pub(super) fn is_barred(&self, session: SessionId, inode: InodeId, rights: Rights) -> bool {
        self.busy.get(&inode).is_some_and(|busy| {
            busy.bars.iter().any(|bar| bar.session != session && bar.rights.intersects(rights))
        })
    }

    /// Returns whether no earlier bar prevents a grant of `rights`; otherwise wakes the call when
    /// one is lifted.
    fn wait_for_bars(
        &mut self,
        call: CallId,
        session: SessionId,
        inode: InodeId,
        rights: Rights,
    ) -> bool {
        let order = self.waiting.get(&call).map_or(u64::MAX, |waiting| waiting.order);
        let is_free = !self.busy.get(&inode).is_some_and(|busy| {
            let mut bars = busy.bars.iter();
            bars.any(|b| b.session != session && b.order < order && b.rights.intersects(rights))
        });
        if !is_free {
            self.waiting(call, inode);
            let acquirers = &mut self.busy.entry(inode).or_default().acquirers;
            if !acquirers.contains(&call) {
                acquirers.push(call);
            }
        }
        is_free
    }

    /// Returns whether no other session holds `rights`; otherwise recalls them.
    fn demand_rights(
        &mut self,
        call: CallId,
        session: SessionId,
        inode: InodeId,
        rights: Rights,
    ) -> bool {
        let Some(holders) = self.holders.get(&inode) else { return true };
        let others: SmallVec<[(SessionId, Rights); 4]> = holders
            .iter()
            .filter(|h| h.session != session || reactor::mutant!("own-rights-recalled"))
            .filter(|h| h.rights.intersects(rights - Rights::OPEN))
            .map(|h| (h.session, h.rights & rights))
            .collect();
        for (holder, held) in &others {
            self.recall_by_class(call, *holder, inode, *held);
        }
        others.is_empty()
    }

    /// Returns whether the call's session is known to have the inode open, or holds no right under
    /// which it may open it without a report. Otherwise recalls its rights.
    fn demand_open_report(&mut self, call: CallId, session: SessionId, inode: InodeId) -> bool {
        let held = self.rights(session, inode);
        if held.is_empty() || held.contains(Rights::OPEN) {
            return true;
        }
        self.recall_by_class(call, session, inode, held);
        false
    }

    fn recall_by_class(&mut self, call: CallId, holder: SessionId, inode: InodeId, rights: Rights) {
        for class in CLASSES {
            if rights.intersects(class) {
                self.recall(Some(call), holder, inode, rights & class);
            }
        }
    }

    /// Recalls rights of one class for a call, which then waits; joins recalls that are under way.
    pub(super) fn recall(
        &mut self,
        call: Option<CallId>,
        holder: SessionId,
        inode: InodeId,
        rights: Rights,
    ) {
        let mut missing = rights;
        let under_way = self.busy.get(&inode).map(|busy| busy.asks.clone()).unwrap_or_default();
        for id in under_way {
            let Some(open) = self.asks.get(&id) else { continue };
            if open.session == holder && !open.is_forget && open.rights.intersects(rights) {
                missing = missing - open.rights;
                self.join(call, id);
            }
        }
        if missing.is_empty() {
            return;
        }
        let stamp = self.next_stamp();
        let what = Asked::Recall(Recall { inode, rights: missing, stamp });
        self.ask(call, holder, what);
    }

    /// Returns whether every other holder of READ has forgotten the names; otherwise asks them to.
    fn demand_forget(
        &mut self,
        call: CallId,
        session: SessionId,
        inode: InodeId,
        names: &[Name],
    ) -> bool {
        let Some(holders) = self.holders.get(&inode) else { return true };
        let readers: SmallVec<[SessionId; 4]> = holders
            .iter()
            .filter(|h| h.session != session && h.rights.contains(Rights::READ))
            .map(|h| h.session)
            .collect();
        if readers.len() > INVALIDATE_HOLDERS_MAX {
            return self.demand_rights(call, session, inode, Rights::READ);
        }
        for reader in readers {
            let forgotten = self.waiting.get(&call).map_or(&[][..], |w| &w.forgotten);
            let is_new = |name: &&Name| {
                !forgotten.iter().any(|(s, i, n)| *s == reader && *i == inode && n == *name)
            };
            let new: Vec<Name> = names.iter().filter(is_new).cloned().collect();
            if new.is_empty() {
                continue;
            }
            let entries = new.iter().map(|name| (reader, inode, name.clone()));
            self.waiting(call, inode).forgotten.extend(entries);
            let stamp = self.next_stamp();
            self.ask(Some(call), reader, Asked::Forget { inode, names: new, stamp });
        }
        let is_waiting = self.waiting.get(&call).is_some_and(|waiting| waiting.missing > 0);
        !is_waiting || reactor::mutant!("invalidation-not-awaited")
    }

    fn ask(&mut self, call: Option<CallId>, session: SessionId, what: Asked) {
        self.next_ask += 1;
        let id = AskId(self.next_ask);
        let (inode, rights, stamp, is_forget) = match &what {
            Asked::Recall(recall) => (recall.inode, recall.rights, recall.stamp, false),
            Asked::Forget { inode, stamp, .. } => (*inode, Rights::NONE, *stamp, true),
        };
        // Rights that wait for commits are never recalled together with rights that commits wait
        // for.
        let is_mixed = rights.contains(Rights::READ) && rights != Rights::READ;
        assert!(!is_mixed && (is_forget || !rights.is_empty()), "{session} is asked for {what:?}");
        assert!(
            is_forget || self.rights(session, inode).contains(rights),
            "{session} is asked for {rights:?} over {inode}, and holds {:?}",
            self.rights(session, inode)
        );
        let is_eviction = call.is_none();
        let calls = Vec::new();
        let open = Open { session, inode, rights, is_forget, stamp, is_eviction, calls };
        self.asks.insert(id, open);
        self.busy.entry(inode).or_default().asks.push(id);
        self.join(call, id);
        self.outbox.push(Ask { id, session, what });
    }

    /// Makes a call wait for an answer.
    fn join(&mut self, call: Option<CallId>, id: AskId) {
        let (Some(call), Some(open)) = (call, self.asks.get_mut(&id)) else { return };
        if !open.calls.contains(&call) {
            open.calls.push(call);
            let inode = open.inode;
            self.waiting(call, inode).missing += 1;
        }
    }

    /// Returns a session from which a call awaits an answer, if there is one.
    pub fn asked_for(&self, call: CallId) -> Option<SessionId> {
        self.asks.values().find(|open| open.calls.contains(&call)).map(|open| open.session)
    }

    /// Returns the inode that an unanswered ask concerns.
    pub fn asked_of(&self, id: AskId) -> Option<InodeId> {
        self.asks.get(&id).map(|open| open.inode)
    }

    /// Takes the answer to an ask; for a recall, `kept` are the rights that the session keeps.
    /// Returns the inode if the session had it open and has closed it.
    pub fn answered(&mut self, id: AskId, kept: Rights) -> Option<InodeId> {
        let open = self.close_ask(id)?;
        if open.is_forget {
            return None;
        }
        if open.is_eviction
            && let Some(held) = self.sessions.get_mut(&open.session)
        {
            let (session, inode) = (open.session, open.inode);
            assert!(
                held.evictions > 0,
                "{session} gives {inode} back to make room without a request"
            );
            held.evictions -= 1;
        }
        let had_open = self.rights(open.session, open.inode).contains(Rights::OPEN);
        self.take_away(&open, kept);
        let has_open = self.rights(open.session, open.inode).contains(Rights::OPEN);
        (had_open && !has_open).then_some(open.inode)
    }

    /// Applies the answer to a recall.
    fn take_away(&mut self, open: &Open, kept: Rights) {
        let Some(holders) = self.holders.get_mut(&open.inode) else { return };
        let Some(holder) = holders.iter_mut().find(|h| h.session == open.session) else { return };
        assert!(
            holder.stamp != open.stamp,
            "a grant over {} and a recall have one stamp: {holder:?}, {open:?}",
            open.inode
        );
        holder.rights = holder.rights - open.rights;
        // A grant after the recall stands: the client answered before it knew of the grant.
        if holder.stamp < open.stamp || reactor::mutant!("recall-takes-newer-open") {
            holder.rights = (holder.rights - Rights::OPEN) | (kept & Rights::OPEN);
        } else {
            holder.rights |= kept & Rights::OPEN;
        }
        assert!(
            !holder.rights.intersects(open.rights - Rights::OPEN),
            "{holder:?} still has rights over {} that it gave back: {open:?}",
            open.inode
        );
        self.note_sole(open.session, open.inode);
        self.drop_if_empty(open.session, open.inode);
    }

    /// Removes an ask; the calls that waited only for it become ready.
    pub(super) fn close_ask(&mut self, id: AskId) -> Option<Open> {
        let open = self.asks.remove(&id)?;
        if let Some(busy) = self.busy.get_mut(&open.inode) {
            let before = busy.asks.len();
            busy.asks.retain(|other| *other != id);
            assert!(
                busy.asks.len() + 1 == before,
                "{id:?} about {} was noted {before} times, now {}",
                open.inode,
                busy.asks.len()
            );
        }
        for call in &open.calls {
            if let Some(waiting) = self.waiting.get_mut(call) {
                assert!(
                    waiting.missing > 0,
                    "{call:?} has no missing answers, but an ask about {} lists it: {waiting:?}",
                    open.inode
                );
                waiting.missing -= 1;
                if waiting.missing == 0 {
                    self.ready.push(*call);
                }
            }
        }
        self.tidy(open.inode);
        Some(open)
    }
}
