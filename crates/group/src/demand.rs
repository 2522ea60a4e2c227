//! Demands for memory in use, on the side of the member that is asked, and on that of the request
//! that needs memory.

use super::at_limit::Request;
use super::member::{At, Member, MemberDevice, Station};
use super::trail::happening;
use gpulimit_base::device::DeviceId;
use gpulimit_ledger::{
    Answer, Askable, Category, Demand, Details, EventKind, PressureWords, Reason, Refused, Slot,
    Witness,
};
use gpulimit_limits::Bounds;
use std::time::{Duration, Instant};

/// A demand that a thread of this process was told, kept until the thread answers.
#[derive(Copy, Clone)]
pub struct Told<'a> {
    /// The number of the demand.
    pub number: u64,
    device: MemberDevice<'a>,
    bytes: u64,
    /// Bytes that this process used.
    in_use: u64,
}

/// The memory that this process is asked to give back.
#[derive(Copy, Clone)]
pub struct Demanded<'a> {
    /// The argument of [`Member::answer`]. `None` if another thread has to answer a demand.
    pub told: Option<Told<'a>>,
    /// The device.
    pub device: DeviceId,
    /// Bytes, no more than this process can give back.
    pub bytes: u64,
    /// Why the process is asked.
    pub reason: Reason,
    /// The name of the group that needs the memory: this process's group or one above it.
    pub group: &'a str,
}

impl Station {
    fn pressure_timeout(&self) -> Duration {
        self.limits.options().pressure_timeout
    }
}

impl At<'_> {
    /// Returns the bytes in use above the limit or above `high`.
    fn excess(&self, reason: Reason) -> u64 {
        let Bounds { max, high, .. } = self.bounds();
        self.in_use().saturating_sub(match reason {
            Reason::High => high,
            Reason::Request | Reason::Limit => max,
        })
    }
}

impl Member {
    /// The topmost group, in whose ledger members are asked.
    fn top(&self) -> &Station {
        &self.levels[self.levels.len() - 1]
    }

    /// Returns the pressure on this process.
    fn pressure(&self) -> &PressureWords {
        self.top().slot.pressure()
    }

    /// Lets other processes ask this process for memory, or not any more.
    pub fn register(&self, registered: bool) {
        if registered {
            self.top().slot.forget_demand();
        }
        for level in &self.levels {
            level.slot.register(&self.top().slot, registered);
        }
    }

    /// Returns the number of demands so far: see [`PressureWords::demands`].
    pub fn demands(&self) -> u64 {
        self.pressure().demands()
    }

    /// Tells the processes that have asked for memory that this process has given what it can.
    pub fn answer(&self, told: &Told<'_>) {
        let in_use = told.device.own_usage().in_use();
        let answer = match told.in_use.saturating_sub(in_use) < told.bytes {
            true => Answer::TooLittle,
            false => Answer::Enough,
        };
        self.give_answer(told.number, answer);
    }

    /// Answers a demand that another thread was told and has left without an answer, so that this
    /// process is asked again. No request counts on the demand after `pressure_timeout`.
    pub fn answer_abandoned(&self) {
        let time = self.levels.iter().map(Station::pressure_timeout).max();
        if self.pressure().is_silent_for(time.unwrap_or_default()) {
            self.give_answer(self.demands(), Answer::Enough);
        }
    }

    fn give_answer(&self, demand: u64, answer: Answer) {
        self.top().slot.answer(demand, answer);
        for level in &self.levels {
            level.ledger.wake_waiters();
        }
    }

    /// Sleeps until there is a new demand, at most for `time`: see [`Slot::await_demand`]. Returns
    /// false after a signal.
    pub fn await_demand(&self, seen: u64, time: Duration) -> bool {
        self.top().slot.await_demand(seen, time)
    }

    /// Wakes the threads that sleep in [`Self::await_demand`].
    pub fn end_waits(&self) {
        self.top().slot.end_waits();
    }

    /// Takes the demand that another process has made. `None` if there is none, or if this process
    /// has nothing to give back: any member can write a demand.
    pub fn take_demand(&self) -> Option<Demanded<'_>> {
        let demand = self.top().slot.take_demand()?;
        let number = self.demands();
        let checked = self.checked(demand, number);
        if let Err(answer) = checked {
            self.give_answer(number, answer);
        }
        checked.ok()
    }

    /// Returns what this process is told of a demand, or the answer to a demand that it is not
    /// told: the process has nothing to give, or the memory is not needed any more.
    fn checked(&self, demand: Demand, number: u64) -> Result<Demanded<'_>, Answer> {
        let Demand {
            device,
            depth,
            bytes,
            reason,
        } = demand;
        let find = || {
            let level = (self.levels.len() - 1).checked_sub(depth.into())?;
            let entry = self.top().ledger.device_entry(device)?;
            Some((level, self.device(entry.id, entry.capacity).ok()?))
        };
        let (level, device) = find().ok_or(Answer::TooLittle)?;
        let at = device.at(level);
        let needed = match reason {
            // The request does not wait any more, or asks again.
            Reason::Request if self.pressure().since_asked() > at.pressure_timeout() => 0,
            Reason::Request => bytes,
            // Members may have given since the demand.
            Reason::High | Reason::Limit => bytes.min(at.excess(reason)),
        };
        if needed == 0 {
            return Err(Answer::Enough);
        }
        device
            .demanded(level, needed, reason, Some(number))
            .ok_or(Answer::TooLittle)
    }

    /// Returns how much memory this process should give back, because a limit is below the usage or
    /// because usage is above `high`. A limit comes first, then the largest excess. Larger members
    /// give before this process, if they can. Asks the other members for their parts, so that a
    /// member that does not look by itself has a demand that it does not answer, and is left out
    /// after `pressure_timeout`.
    pub fn excess(&self, witness: &dyn Witness) -> Option<Demanded<'_>> {
        // The thread that is told answers for the process, unless another one still has to.
        let answer = self.pressure().last_answer();
        let number = answer.map(|_| self.demands());
        let mut most: Option<(Demanded<'_>, MemberDevice<'_>, usize)> = None;
        for entry in self.ledger().devices() {
            let Ok(device) = self.device(entry.id, entry.capacity) else {
                continue;
            };
            device.clean(witness);
            for (level, at) in device.levels().enumerate() {
                let reasons = [Reason::Limit, Reason::High];
                let excess = reasons.map(|reason| (at.excess(reason), reason));
                let Some((bytes, reason)) = excess.into_iter().find(|(bytes, _)| *bytes > 0) else {
                    continue;
                };
                let bytes = device.own_part(level, bytes, reason);
                let demanded = device.demanded(level, bytes, reason, number);
                let rank = |it: &Demanded<'_>| (it.reason == Reason::Limit, it.bytes);
                if demanded.as_ref().map(rank) > most.as_ref().map(|(most, ..)| rank(most)) {
                    most = demanded.map(|demanded| (demanded, device, level));
                }
            }
        }
        let (demanded, device, level) = most?;
        // One event, and not one each second, of a process that has nothing more to give.
        if answer == Some(Answer::Enough) {
            let what = (EventKind::Asked, demanded.bytes, 1);
            device.record_demand(level, what, device.at(level).charged(), "");
        }
        Some(demanded)
    }
}

impl<'a> MemberDevice<'a> {
    /// Returns this process's part of the `bytes` that a group has too much: what the larger
    /// members cannot give. Leaves out those that gave too little when they were last asked. Asks
    /// the others for their parts.
    fn own_part(&self, level: usize, bytes: u64, reason: Reason) -> u64 {
        let top = &self.top().ledger;
        let own = self.at(level).slot.index();
        let has_no_more = |member: &Askable| {
            member.slot != own && top.pressure(member).last_answer() == Some(Answer::TooLittle)
        };
        let (plan, _) = self.share(level, bytes, None, &[], &has_no_more);
        self.ask_others(level, &plan, reason, "");
        let part = plan.iter().find(|(member, _)| member.slot == own);
        part.map_or(0, |(_, bytes)| *bytes)
    }

    /// Asks each member of a plan but this process, and records that.
    fn ask_others(&self, level: usize, plan: &[(Askable, u64)], reason: Reason, function: &str) {
        let own = self.at(level).slot.index();
        let others = plan.iter().filter(|(member, _)| member.slot != own);
        // As if always needed: a later demand would hide that a member does not answer.
        let why = (reason, Duration::MAX);
        self.ask_each(level, others, why, function, |_, _| {});
    }

    /// Asks each member of a plan that was not asked a moment ago, for memory that has been needed
    /// for some time. Leaves out a member that has not answered a later demand: that one was made
    /// for all who need memory. Tells `asked` of each member whether it was asked now. Records the
    /// demands as one event, with the charge before them. Returns whether any member was asked.
    fn ask_each<'p>(
        &self,
        level: usize,
        plan: impl IntoIterator<Item = &'p (Askable, u64)>,
        (reason, needed_for): (Reason, Duration),
        function: &str,
        mut asked: impl FnMut(&Askable, bool),
    ) -> bool {
        let (top, depth) = (self.top(), self.member.levels.len() - 1 - level);
        let charged = self.at(level).charged();
        let (mut sum, mut count) = (0u64, 0);
        for (member, bytes) in plan {
            let demand = Demand {
                device: top.index,
                depth: depth as u8,
                bytes: *bytes,
                reason,
            };
            let is_for_all = top.ledger.pressure(member).last_answer().is_none()
                && top.ledger.pressure(member).since_asked() < needed_for;
            let is_asked = !is_for_all && top.ledger.ask(member, demand);
            if is_asked {
                sum = sum.saturating_add(*bytes);
                count += 1;
            }
            asked(member, is_asked);
        }
        if count > 0 {
            let what = (EventKind::Asked, sum, count);
            self.record_demand(level, what, charged, function);
        }
        count > 0
    }

    /// Records a number of bytes and a count.
    fn record_demand(
        &self,
        level: usize,
        (kind, bytes, count): (EventKind, u64, u64),
        charged: u64,
        function: &str,
    ) {
        let at = self.at(level);
        let happening = happening(kind, at.index, bytes, charged, at.bounds().max);
        let details = Details {
            function,
            count,
            ..Details::default()
        };
        self.member.record_with(level, &happening, details);
    }

    /// Divides `bytes` among the registered members of the group at `level`, the largest first.
    /// Each gives at most what it uses and its child group does not protect. What the members in
    /// `asked` have not answered yet counts as coming. Leaves out members that have left a demand
    /// unanswered for `pressure_timeout`, and those that `has_no_more` is true of. Returns also the
    /// bytes that no member can give.
    fn share(
        &self,
        level: usize,
        bytes: u64,
        but: Option<&Slot>,
        asked: &[Asked],
        has_no_more: &dyn Fn(&Askable) -> bool,
    ) -> (Vec<(Askable, u64)>, u64) {
        let (at, top) = (self.at(level), &self.top().ledger);
        let time = at.pressure_timeout();
        let mut members = at.ledger.askable(at.index, top, but);
        members.retain(|member| !top.pressure(member).is_silent_for(time) && !has_no_more(member));
        let coming = |member: &Askable| {
            let asked = asked.iter().find(|asked| asked.slot == member.slot)?;
            let is_open = top.pressure(member).answer(asked.demand).is_none();
            let now = at.ledger.charged_by(member.slot, at.index);
            is_open.then(|| asked.bytes.saturating_sub(asked.from.saturating_sub(now)))
        };
        let (open, free): (Vec<_>, Vec<_>) = members
            .into_iter()
            .map(|member| (member, coming(&member)))
            .partition(|(_, coming)| coming.is_some());
        let first = open
            .iter()
            .map(|(member, coming)| (*member, coming.unwrap_or(0)));
        // A member may have more than it was asked for.
        let rest = free
            .iter()
            .chain(&open)
            .map(|(member, _)| (*member, u64::MAX));
        let mut left = bytes;
        let mut plan: Vec<(Askable, u64)> = Vec::new();
        for (member, most) in first.chain(rest) {
            let taken = |is_counted: &dyn Fn(&Askable) -> bool| {
                let counted = plan.iter().filter(|(other, _)| is_counted(other));
                counted.fold(0u64, |sum, (_, bytes)| sum.saturating_add(*bytes))
            };
            let unprotected = at.unprotected(member.child);
            let own = member
                .in_use
                .saturating_sub(taken(&|other| other.slot == member.slot));
            let group = unprotected.saturating_sub(taken(&|other| other.child == member.child));
            let part = own.min(group).min(left).min(most);
            if part > 0 {
                plan.push((member, part));
                left -= part;
            }
        }
        (plan, left)
    }

    fn demanded(
        &self,
        level: usize,
        bytes: u64,
        reason: Reason,
        number: Option<u64>,
    ) -> Option<Demanded<'a>> {
        let bytes = bytes.min(self.unprotected(level));
        let told = number.map(|number| Told {
            number,
            device: *self,
            bytes,
            in_use: self.own_usage().in_use(),
        });
        (bytes > 0).then(|| Demanded {
            told,
            device: self.id(),
            bytes,
            reason,
            group: self.name(level),
        })
    }

    /// Returns the bytes in use of this process that its groups below `level` do not protect,
    /// without those that the driver takes itself.
    fn unprotected(&self, level: usize) -> u64 {
        let own = self.own_usage();
        let own = own.in_use().saturating_sub(own.of(Category::Driver));
        let spared = self.levels().take(level).map(|at| {
            let Bounds { low, min, .. } = at.bounds();
            match low.max(min) {
                0 => u64::MAX,
                kept => at.charged().saturating_sub(kept),
            }
        });
        spared.fold(own, u64::min)
    }
}

/// A request that asks registered members for memory.
pub(super) struct Asking {
    /// When the request stops asking.
    pub until: Instant,
    began: Instant,
    level: usize,
    /// The members of the plans.
    asked: Vec<Asked>,
    /// Whether the event is recorded: this request was the one that asked.
    is_recorded: bool,
}

/// A member that a request has asked.
struct Asked {
    slot: usize,
    /// Bytes that the member had charged before the first demand.
    before: u64,
    /// Bytes that the member had charged before the last demand.
    from: u64,
    /// Bytes of the last demand.
    bytes: u64,
    /// The number of the demand that the request counts on; 0 if it has not asked yet.
    demand: u64,
    /// The least bytes that the member had charged since the last demand, and since when.
    least: u64,
    moved: Instant,
}

impl Asked {
    /// Notes the bytes that the member has charged.
    fn note(&mut self, charged: u64) {
        if charged < self.least {
            (self.least, self.moved) = (charged, Instant::now());
        }
    }
}

impl Request<'_, '_> {
    /// Returns a plan to ask for the memory that the request lacks in the group that has refused
    /// it. `None` if registered members do not hold enough, or if the group asks nobody.
    pub(super) fn asking(&self, refused: &Refused) -> Option<Asking> {
        let level = refused.level;
        let time = self.options(level).pressure_timeout;
        if time.is_zero() {
            return None;
        }
        // A request can be refused although it fits, as in a damaged ledger.
        self.plan(level, &[], refused.pending, 0)
            .filter(|plan| !plan.is_empty())?;
        let began = Instant::now();
        Some(Asking {
            until: began + time,
            began,
            level,
            asked: Vec::new(),
            is_recorded: false,
        })
    }

    /// Begins to ask anew for a request that waits on: members may have registered meanwhile, or
    /// have more to give. Returns false if they do not hold enough.
    pub(super) fn ask_anew(&self, asking: &mut Option<Asking>, refused: &Refused) -> bool {
        let Some(next) = self.asking(refused) else {
            return false;
        };
        match asking {
            Some(asking) => {
                asking.until = next.until;
                for asked in &mut asking.asked {
                    asked.demand = 0;
                }
            }
            None => *asking = Some(next),
        }
        true
    }

    /// Asks the members of a plan again, as far as they were not asked a moment ago. Returns false
    /// if they do not hold enough any more, without those that have given too little. `pending`
    /// bytes of ended processes will soon be free.
    pub(super) fn ask(&self, asking: &mut Asking, pending: u64) -> bool {
        let at = self.at(asking.level);
        let (index, ledger) = (at.index, &at.ledger);
        for asked in &mut asking.asked {
            asked.note(ledger.charged_by(asked.slot, index));
        }
        let Some(mut plan) = self.plan(asking.level, &asking.asked, pending, 0) else {
            return false;
        };
        // A member is asked five times a second at most: for what all requests lack that wait.
        let top = &self.device.top().ledger;
        if plan
            .iter()
            .all(|(member, _)| top.pressure(member).last_answer().is_some())
        {
            let others = ledger.awaited(&at.slot, index);
            let all = self.plan(asking.level, &asking.asked, pending, others);
            plan = all.unwrap_or(plan);
        }
        // A member that has not answered yet would give the same bytes twice.
        plan.retain(|(member, _)| {
            let mut asked = asking.asked.iter();
            !asked.any(|it| {
                it.slot == member.slot && top.pressure(member).answer(it.demand).is_none()
            })
        });
        // Before they are asked: a member may give back before this thread goes on.
        for (member, bytes) in &plan {
            let from = ledger.charged_by(member.slot, index);
            let mut asked = asking.asked.iter();
            let known = asked.position(|it| it.slot == member.slot);
            let asked = Asked {
                slot: member.slot,
                before: known.map_or(from, |at| asking.asked[at].before),
                from,
                bytes: *bytes,
                demand: 0,
                least: from,
                moved: Instant::now(),
            };
            match known {
                Some(at) => asking.asked[at] = asked,
                None => asking.asked.push(asked),
            }
        }
        let each = |member: &Askable, is_asked: bool| {
            let last = top.pressure(member).demands();
            // A member that gave enough to another request a moment ago may have more.
            let is_next = !is_asked && top.pressure(member).answer(last) == Some(Answer::Enough);
            let mut asked = asking.asked.iter_mut();
            if let Some(known) = asked.find(|it| it.slot == member.slot) {
                known.demand = if is_next { 0 } else { last };
            }
        };
        let why = (Reason::Request, asking.began.elapsed());
        let (level, function) = (asking.level, self.pressure.function());
        asking.is_recorded |= (self.device).ask_each(level, &plan, why, function, each);
        self.plan(asking.level, &asking.asked, pending, 0).is_some()
    }

    /// Records what the members that were asked have given back since then, as the ledger shows it.
    pub(super) fn conclude(&self, asking: &Asking) {
        if !asking.is_recorded {
            return;
        }
        let at = self.at(asking.level);
        let fallen = asking.asked.iter().map(|asked| {
            let now = at.ledger.charged_by(asked.slot, at.index);
            asked.before.saturating_sub(now)
        });
        let bytes = fallen.fold(0, u64::saturating_add);
        let took = u64::try_from(asking.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let what = (EventKind::Given, bytes, took);
        let function = self.pressure.function();
        (self.device).record_demand(asking.level, what, at.charged(), function);
    }

    /// Asks the other members of the group for the memory above `high`. This process is told its
    /// part when a thread of it looks.
    pub(super) fn ask_for_high(&self, level: usize) {
        let excess = self.at(level).excess(Reason::High);
        let (plan, _) = (self.device).share(level, excess, None, &[], &|_| false);
        let function = self.pressure.function();
        (self.device).ask_others(level, &plan, Reason::High, function);
    }

    /// Returns who is asked for how many bytes, so that the request fits when `pending` bytes are
    /// free; `None` if the members do not hold enough. Leaves out members in `asked` that have
    /// given too little. Plans also for as much as they hold of the bytes that `others` lack.
    fn plan(
        &self,
        level: usize,
        asked: &[Asked],
        pending: u64,
        others: u64,
    ) -> Option<Vec<(Askable, u64)>> {
        let at = self.at(level);
        let kept = at.kept().saturating_add(at.beyond());
        let room = at.bounds().max.saturating_sub(kept);
        let charged = at.charged().saturating_sub(pending);
        let lacks = |bytes: u64| charged.saturating_add(bytes).saturating_sub(room);
        let (own, all) = (lacks(self.bytes), lacks(self.bytes.saturating_add(others)));
        let top = &self.device.top().ledger;
        let patience = at.pressure_timeout() / 2;
        let answer = |asked: &Asked, member: &Askable| {
            (asked.slot == member.slot && asked.demand != 0)
                .then(|| top.pressure(member).answer(asked.demand))
        };
        let has_no_more = |member: &Askable| {
            let mut answers = asked.iter().filter_map(|asked| answer(asked, member));
            answers.any(|answer| answer == Some(Answer::TooLittle))
        };
        let is_slow = |member: &Askable| {
            let mut slow = asked
                .iter()
                .filter(|asked| asked.moved.elapsed() >= patience);
            slow.any(|asked| answer(asked, member) == Some(None))
        };
        let but = Some(&at.station.slot);
        let plan = |is_out: &dyn Fn(&Askable) -> bool| {
            let (plan, left) = (self.device).share(level, all, but, asked, is_out);
            (left <= all - own).then_some(plan)
        };
        // The plan includes slow members only if the others do not hold enough.
        plan(&|member| has_no_more(member) || is_slow(member)).or_else(|| plan(&has_no_more))
    }
}
