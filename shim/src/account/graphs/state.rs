//! The launches of a device's graphs: which graphs still have their memory, and the current epoch
//! (see [`super`]). This code calls neither the driver nor the ledger.

use super::execs::Need;
use crate::account::reserve::State;

/// The identity of a stream: the driver's number, and the thread's number for a thread's default
/// stream.
pub type Identity = (u64, u64);

#[derive(Default)]
pub struct Launches {
    /// The total bytes of the backed launches under way. A launch is backed when its graph still
    /// has its memory.
    backed: u64,
    /// Bytes that stay charged while backed launches are under way.
    floor: u64,
    /// The number of launches under way that began an epoch. During such a launch, other graphs may
    /// lose their memory.
    beginning: u32,
    epoch: u64,
    /// The stream of all launches in the present epoch.
    stream: Option<Identity>,
    /// The numbers of launches that have begun and that have ended.
    begun: u64,
    ended: u64,
}

/// A launch or an upload of a graph that is under way.
pub struct Launch<'a> {
    need: &'a Need,
    /// The most bytes of graph memory that the launch takes.
    pub bytes: u64,
    /// Whether the launch is backed: its graph still has its memory.
    pub(super) backed: bool,
    /// Whether the launch begins an epoch, so that other graphs may lose their memory.
    begins: bool,
    epoch: u64,
    number: u64,
    /// Bytes of graph memory that were in use before the launch.
    used: u64,
    /// Whether the device had no graph memory and no other launch under way when this launch was
    /// charged.
    alone: bool,
    /// The number of launches that had ended before the charge for this launch began.
    ended: u64,
}

/// An event for which a launch can wait after the group has refused its bytes.
#[derive(Debug, PartialEq, Eq)]
pub enum Hope {
    /// The end of another thread's launch, because this launch may leave charged bytes unused. The
    /// launch may have ended already.
    Others,
    /// The end of GPU work that uses the reserved memory, perhaps in the waiting launch's stream.
    OwnWork,
}

impl Launches {
    /// Records that the device's graph memory was trimmed. Any graph may have lost its memory.
    pub fn trimmed(&mut self) {
        self.epoch += 1;
    }
}

impl State<Launches> {
    /// Keeps bytes charged that backed launches under way may need.
    fn keep_floor(&mut self) {
        let own = &mut self.own;
        own.floor = if own.backed > 0 { own.floor } else { 0 };
        self.kept = own.floor.saturating_sub(self.used);
    }

    /// Returns whether any launch is under way, charged or backed.
    fn under_way(&self) -> bool {
        self.callers > 0 || self.own.backed > 0
    }

    /// Begins a launch of a graph in `stream`; `None` is an unknown stream. `keeps`: the graph
    /// leaves memory allocated after the launch.
    pub fn begin<'a>(
        &mut self,
        need: &'a Need,
        keeps: bool,
        stream: Option<Identity>,
    ) -> Launch<'a> {
        let (own, bytes) = (&mut self.own, need.bytes());
        let same = stream.is_some() && stream == own.stream;
        // A launch is not backed beside a launch that began an epoch. A launch that keeps memory is
        // not backed beside another.
        let apart = own.beginning == 0 && !(keeps && own.backed > 0);
        let backed = same && apart && need.epoch() == own.epoch;
        let begins = keeps || !same;
        if begins {
            own.epoch += 1;
            own.stream = stream;
            own.beginning += 1;
        }
        if backed {
            own.floor = own.floor.max(self.used);
            own.backed = own.backed.saturating_add(bytes);
        }
        own.begun += 1;
        Launch {
            need,
            bytes,
            backed,
            begins,
            epoch: own.epoch,
            number: own.begun,
            used: self.used,
            alone: false,
            ended: 0,
        }
    }

    /// Returns the bytes to charge before a launch. A launch that begins an epoch also pays for the
    /// backed launches under way.
    pub fn due(&self, launch: &Launch<'_>) -> u64 {
        match (launch.backed, launch.begins) {
            (true, _) => 0,
            (false, true) => launch.bytes.saturating_add(self.own.backed),
            (false, false) => launch.bytes,
        }
    }

    /// Records how many launches have ended. Call before each attempt to pay for a launch.
    pub fn approach(&self, launch: &mut Launch<'_>) {
        launch.ended = self.own.ended;
    }

    /// Returns the event for which a refused launch can wait. `waited`: the launch has waited for
    /// its own stream.
    pub fn hope(&self, launch: &Launch<'_>, waited: bool) -> Option<Hope> {
        if self.under_way() || self.own.ended != launch.ended {
            return Some(Hope::Others);
        }
        (!waited && self.used > 0).then_some(Hope::OwnWork)
    }

    /// Returns whether waiting can help `launch`: other launches under way may leave the unused
    /// bytes that `launch` lacks.
    pub fn may_gain(&self, launch: &Launch<'_>) -> bool {
        self.under_way() && self.idle() < self.due(launch)
    }

    /// Records that the device's graph memory was trimmed for a launch. The launch's graph has lost
    /// its earlier memory.
    pub fn begin_anew(&mut self, launch: &mut Launch<'_>) {
        self.own.epoch += 1;
        launch.epoch = self.own.epoch;
        launch.used = self.used;
    }

    /// Records that `promised` bytes are charged for a launch.
    pub fn paid(&self, launch: &mut Launch<'_>, promised: u64) {
        launch.alone = self.used == 0 && self.promised == promised && self.own.backed == 0;
    }

    /// Records that the driver has `used` bytes of graph memory. Returns the bytes of them that the
    /// caller has to charge.
    pub fn see(&mut self, used: u64) -> u64 {
        self.own.epoch += u64::from(used < self.used);
        self.used = used;
        self.keep_floor();
        used.saturating_sub(self.held)
    }

    /// Records the end of a launch.
    pub fn end(&mut self, launch: &Launch<'_>) {
        if launch.backed {
            self.own.backed = self.own.backed.saturating_sub(launch.bytes);
            self.keep_floor();
        }
        self.own.ended += 1;
    }

    /// Concludes an ended launch. Call after the bytes in use were read. Returns true if a failed
    /// launch has left unused memory.
    pub fn conclude(&mut self, launch: &Launch<'_>, succeeded: bool) -> bool {
        let own = &mut self.own;
        if launch.begins {
            own.beginning = own.beginning.saturating_sub(1);
            // If another epoch has begun meanwhile, this launch may have taken memory of graphs in
            // that epoch. So a further epoch begins.
            own.epoch += u64::from(own.epoch != launch.epoch);
        }
        if !succeeded {
            return self.used > launch.used;
        }
        if own.epoch == launch.epoch {
            launch.need.set_epoch(launch.epoch);
        }
        if launch.alone && launch.number == own.begun && self.used > 0 {
            launch.need.learn(self.used);
        }
        false
    }

    /// Records that all graph memory of the device is gone. Returns the state before this change.
    pub fn clear(&mut self) -> Self {
        let gone = State {
            callers: self.callers,
            own: Launches {
                epoch: self.own.epoch + 1,
                begun: self.own.begun,
                ended: self.own.ended,
                ..Launches::default()
            },
            ..State::default()
        };
        std::mem::replace(self, gone)
    }
}

#[cfg(test)]
mod tests {
    use std::ops::{Deref, DerefMut};

    use super::*;

    const S: Option<Identity> = Some((1, 0));
    const T: Option<Identity> = Some((2, 0));

    fn need(bytes: u64) -> Need {
        Need::new(0, bytes)
    }

    /// A launch, and the bytes that are promised to it.
    struct Paid<'a>(Launch<'a>, u64);

    impl<'a> Deref for Paid<'a> {
        type Target = Launch<'a>;

        fn deref(&self) -> &Launch<'a> {
            &self.0
        }
    }

    impl DerefMut for Paid<'_> {
        fn deref_mut(&mut self) -> &mut Self::Target {
            &mut self.0
        }
    }

    fn begin<'a>(
        state: &mut State<Launches>,
        need: &'a Need,
        keeps: bool,
        stream: Option<Identity>,
    ) -> Paid<'a> {
        Paid(state.begin(need, keeps, stream), 0)
    }

    /// Begins a launch and charges its bytes. Returns the launch and the charged bytes.
    fn start<'a>(
        state: &mut State<Launches>,
        need: &'a Need,
        keeps: bool,
        stream: Option<Identity>,
    ) -> (Paid<'a>, u64) {
        let mut launch = begin(state, need, keeps, stream);
        let charged = if launch.backed {
            0
        } else {
            pay(state, &mut launch)
        };
        (launch, charged)
    }

    /// Pays for a launch as [`crate::account::reserve::Promise::raise`] does.
    fn pay(state: &mut State<Launches>, launch: &mut Paid<'_>) -> u64 {
        let due = state.due(launch);
        let charged = due - state.idle().min(due);
        state.held += charged;
        launch.1 = state.promise(due);
        state.callers += 1;
        state.paid(&mut launch.0, due);
        charged
    }

    fn give_back(state: &mut State<Launches>) -> u64 {
        let excess = state.held.saturating_sub(state.wanted());
        state.held -= excess;
        excess
    }

    fn end(state: &mut State<Launches>, launch: &Paid<'_>) {
        state.release(launch.1);
        state.callers -= u32::from(!launch.backed);
        state.end(launch);
    }

    /// Ends `launch`, after which the driver has `reserved` bytes of graph memory. Returns the
    /// bytes that are uncharged.
    fn finish(state: &mut State<Launches>, launch: &Paid<'_>, reserved: u64) -> u64 {
        end(state, launch);
        assert_eq!(state.see(reserved), 0);
        assert!(!state.conclude(launch, true));
        give_back(state)
    }

    /// Runs a launch from its beginning to its end.
    fn run(
        state: &mut State<Launches>,
        need: &Need,
        keeps: bool,
        stream: Option<Identity>,
        reserved: u64,
    ) {
        let (launch, _) = start(state, need, keeps, stream);
        finish(state, &launch, reserved);
    }

    /// Returns whether a launch needs no charge, because its graph still has its memory.
    fn is_backed(
        state: &mut State<Launches>,
        need: &Need,
        keeps: bool,
        stream: Option<Identity>,
    ) -> bool {
        let (launch, _) = start(state, need, keeps, stream);
        let reserved = state.used;
        finish(state, &launch, reserved);
        launch.backed
    }

    #[test]
    fn a_launch_pays_ahead_and_gets_back_what_it_did_not_need() {
        let (mut state, graph) = (State::default(), need(100));
        let (launch, charged) = start(&mut state, &graph, false, S);
        assert_eq!((charged, launch.bytes, launch.1), (100, 100, 100));
        assert_eq!((state.held, state.used, state.own.ended), (100, 0, 0));
        assert_eq!(
            give_back(&mut state),
            0,
            "every byte is promised to a launch"
        );
        assert_eq!(finish(&mut state, &launch, 64), 36);
        assert_eq!((state.held, state.used, state.own.ended), (64, 64, 1));
        assert!(!state.under_way());
    }

    #[test]
    fn idle_bytes_pay_first() {
        let (mut state, graph) = (State::default(), need(100));
        run(&mut state, &graph, false, S, 100);
        assert_eq!(state.see(30), 0);
        let (launch, charged) = start(&mut state, &graph, false, S);
        assert_eq!((charged, launch.1), (30, 100));
        assert_eq!(give_back(&mut state), 0);
        // The launch needs no new charge: the charged but unused graph memory is enough.
        assert_eq!(state.see(0), 0);
        let small = need(20);
        let (other, charged) = start(&mut state, &small, false, S);
        assert_eq!((charged, other.1, state.held), (0, 20, 130));
        assert_eq!(give_back(&mut state), 10);
        assert_eq!(
            finish(&mut state, &other, 20),
            0,
            "the remaining bytes are promised to the first launch"
        );
        assert_eq!(finish(&mut state, &launch, 100), 20);
    }

    #[test]
    fn launches_are_under_way_while_they_pay_run_or_have_their_memory() {
        let (mut state, graph) = (State::default(), need(100));
        assert!(!state.under_way());
        let mut launch = begin(&mut state, &graph, false, S);
        assert!(!state.under_way(), "no charge for the launch has begun");
        state.callers += 1;
        assert!(state.under_way(), "bytes are being charged for the launch");
        state.callers -= 1;
        pay(&mut state, &mut launch);
        assert!(state.under_way(), "the bytes of the launch are charged");
        finish(&mut state, &launch, 100);
        assert!(!state.under_way());
        let (launch, _) = start(&mut state, &graph, false, S);
        assert!(launch.backed && state.under_way());
        finish(&mut state, &launch, 100);
        assert!(!state.under_way());
    }

    #[test]
    fn a_launch_short_of_bytes_may_gain_by_others_under_way() {
        let (mut state, first, second) = (State::default(), need(100), need(60));
        let (launch, _) = start(&mut state, &first, false, S);
        let other = begin(&mut state, &second, false, S);
        assert!(state.may_gain(&other));
        end(&mut state, &launch);
        assert!(!state.may_gain(&other), "no other launch is under way");
        let (_, charged) = start(&mut state, &second, false, S);
        assert_eq!((charged, state.held), (0, 100));
        // 40 bytes of graph memory are charged but not in use.
        let (fits, more) = (need(40), need(41));
        let launches = [&fits, &more].map(|need| begin(&mut state, need, false, S));
        assert_eq!(
            launches.map(|launch| state.may_gain(&launch)),
            [false, true]
        );
    }

    #[test]
    fn an_unpaid_launch_waits_for_others_and_then_once_for_its_own_work() {
        let (mut state, graph, large) = (State::default(), need(100), need(200));
        let mut launch = begin(&mut state, &large, false, S);
        state.approach(&mut launch);
        assert_eq!(state.hope(&launch, false), None, "nothing is reserved");
        let (other, _) = start(&mut state, &graph, false, S);
        assert_eq!(state.hope(&launch, true), Some(Hope::Others));
        finish(&mut state, &other, 100);
        assert_eq!(state.hope(&launch, true), Some(Hope::Others));
        state.approach(&mut launch);
        assert_eq!(state.hope(&launch, false), Some(Hope::OwnWork));
        assert_eq!(state.hope(&launch, true), None);
    }

    #[test]
    fn a_graph_has_its_memory_in_its_stream_until_something_comes_between() {
        let (mut state, graph, other) = (State::default(), need(100), need(100));
        run(&mut state, &graph, false, S, 100);
        assert!(is_backed(&mut state, &graph, false, S));
        assert!(!is_backed(&mut state, &other, false, S), "never launched");
        assert!(is_backed(&mut state, &other, false, S));
        assert!(is_backed(&mut state, &graph, false, S), "one stream");
        assert!(!is_backed(&mut state, &graph, false, T), "another stream");
        assert!(is_backed(&mut state, &graph, false, T));
        assert!(!is_backed(&mut state, &other, false, T));
        assert!(!is_backed(&mut state, &graph, false, S));
        state.own.trimmed();
        assert!(!is_backed(&mut state, &graph, false, S), "trimmed");
        assert!(is_backed(&mut state, &graph, false, S));
        state.see(100);
        assert!(
            is_backed(&mut state, &graph, false, S),
            "nothing has changed"
        );
        state.see(50);
        assert!(!is_backed(&mut state, &graph, false, S), "less is reserved");
    }

    #[test]
    fn no_launch_in_an_unknown_stream_is_backed() {
        let (mut state, graph) = (State::default(), need(100));
        for _ in 0..3 {
            assert!(!is_backed(&mut state, &graph, false, None));
        }
        assert!(!is_backed(&mut state, &graph, false, S));
    }

    #[test]
    fn after_a_graph_that_keeps_memory_only_that_graph_is_backed() {
        let (mut state, graph, keeper) = (State::default(), need(100), need(100));
        run(&mut state, &graph, false, S, 100);
        run(&mut state, &keeper, true, S, 200);
        assert!(is_backed(&mut state, &keeper, true, S));
        assert!(is_backed(&mut state, &keeper, true, S));
        assert!(!is_backed(&mut state, &graph, false, S));
        assert!(is_backed(&mut state, &graph, false, S));
    }

    #[test]
    fn a_launch_that_begins_an_epoch_also_pays_for_backed_ones_under_way() {
        let (mut state, graph, other) = (State::default(), need(100), need(30));
        run(&mut state, &graph, false, S, 100);
        let (running, _) = start(&mut state, &graph, false, S);
        assert!(running.backed);
        let (begins, charged) = start(&mut state, &other, false, T);
        assert_eq!(charged, 130);
        // While a launch that began an epoch is under way, all other launches are charged, even
        // launches of the same graph.
        other.set_epoch(state.own.epoch);
        let (late, charged) = start(&mut state, &other, false, T);
        assert!(!late.backed && charged == 30);
        finish(&mut state, &late, 100);
        finish(&mut state, &begins, 100);
        assert!(is_backed(&mut state, &other, false, T));
        finish(&mut state, &running, 100);
        assert!(!is_backed(&mut state, &graph, false, T));
    }

    #[test]
    fn a_graph_that_keeps_memory_is_not_backed_beside_others() {
        let (mut state, graph, keeper) = (State::default(), need(100), need(100));
        run(&mut state, &keeper, true, S, 100);
        run(&mut state, &graph, false, S, 200);
        let (running, _) = start(&mut state, &graph, false, S);
        assert!(running.backed);
        let (launch, charged) = start(&mut state, &keeper, true, S);
        assert!(!launch.backed);
        assert_eq!(charged, 200, "both pay");
        finish(&mut state, &launch, 200);
        finish(&mut state, &running, 200);
    }

    /// A graph has lost its memory if a new epoch began during its launch, because other graphs may
    /// have taken the memory.
    #[test]
    fn an_epoch_that_passes_during_a_launch_leaves_it_unsure() {
        let (mut state, graph, other) = (State::default(), need(100), need(100));
        let (launch, _) = start(&mut state, &graph, false, S);
        state.own.trimmed();
        let (second, _) = start(&mut state, &other, false, S);
        finish(&mut state, &second, 100);
        finish(&mut state, &launch, 100);
        assert!(
            !is_backed(&mut state, &other, false, S),
            "the first launch ran at the same time"
        );
        assert!(!is_backed(&mut state, &graph, false, S));
    }

    #[test]
    fn a_launch_after_a_trim_is_sure_of_its_memory() {
        let (mut state, graph, other) = (State::default(), need(100), need(100));
        run(&mut state, &graph, false, S, 100);
        run(&mut state, &other, false, S, 100);
        let mut launch = begin(&mut state, &graph, false, T);
        assert_eq!(state.see(0), 0);
        state.begin_anew(&mut launch);
        assert_eq!(pay(&mut state, &mut launch), 0, "the trimmed bytes suffice");
        finish(&mut state, &launch, 100);
        assert!(is_backed(&mut state, &graph, false, T));
        assert!(!is_backed(&mut state, &other, false, T));
    }

    #[test]
    fn after_a_trim_that_freed_nothing_only_the_launched_graph_is_backed() {
        let (mut state, graph, other, third) = (State::default(), need(9), need(9), need(9));
        run(&mut state, &other, false, S, 9);
        let mut launch = begin(&mut state, &graph, false, S);
        state.begin_anew(&mut launch);
        pay(&mut state, &mut launch);
        finish(&mut state, &launch, 9);
        assert!(is_backed(&mut state, &graph, false, S));
        for unsure in [&other, &third] {
            assert!(!is_backed(&mut state, unsure, false, S));
        }
    }

    #[test]
    fn a_trim_keeps_the_charge_of_backed_launches_under_way() {
        let (mut state, graph, other) = (State::default(), need(128), need(128));
        run(&mut state, &graph, false, S, 128);
        let (first, _) = start(&mut state, &graph, false, S);
        let mut anew = begin(&mut state, &other, false, S);
        assert!(first.backed && !anew.backed);
        assert_eq!((state.see(64), give_back(&mut state)), (0, 0));
        // A second launch whose graph still has its memory begins after the trim.
        state.begin_anew(&mut anew);
        assert_eq!(pay(&mut state, &mut anew), 128);
        assert_eq!(finish(&mut state, &anew, 64), 128);
        let (second, _) = start(&mut state, &other, false, S);
        assert!(second.backed);
        assert_eq!((state.see(0), give_back(&mut state)), (0, 0));
        assert_eq!(finish(&mut state, &first, 0), 0);
        assert_eq!(finish(&mut state, &second, 0), 128);
    }

    #[test]
    fn the_floor_of_earlier_backed_launches_does_not_outlive_them() {
        let (mut state, graph, other) = (State::default(), need(128), need(60));
        run(&mut state, &graph, false, S, 128);
        assert!(is_backed(&mut state, &graph, false, S));
        state.see(60);
        assert_eq!(give_back(&mut state), 68);
        run(&mut state, &graph, false, S, 60);
        let (backed, _) = start(&mut state, &graph, false, S);
        assert!(backed.backed);
        let (launch, charged) = start(&mut state, &other, false, S);
        assert_eq!(charged, 60);
        assert_eq!(finish(&mut state, &launch, 60), 60, "60 are enough");
        finish(&mut state, &backed, 60);
    }

    #[test]
    fn the_need_of_a_graph_is_learnt_where_it_runs_alone() {
        let (mut state, graph) = (State::default(), need(100));
        run(&mut state, &graph, false, S, 64);
        assert_eq!(graph.bytes(), 64);
        // Before this launch, other graphs had reserved graph memory.
        let (other, third) = (need(100), need(100));
        run(&mut state, &other, false, S, 64);
        assert_eq!(other.bytes(), 100);
        state.see(0);
        // These two launches run at the same time.
        let (launch, _) = start(&mut state, &other, false, S);
        let (beside, _) = start(&mut state, &third, false, S);
        finish(&mut state, &beside, 64);
        state.see(0);
        finish(&mut state, &launch, 64);
        assert_eq!((other.bytes(), third.bytes()), (100, 100));
        // A launch whose graph still has its memory is under way when the device is trimmed.
        run(&mut state, &other, false, S, 64);
        let (backed, _) = start(&mut state, &other, false, S);
        assert!(backed.backed);
        state.see(0);
        run(&mut state, &third, false, S, 64);
        assert_eq!(third.bytes(), 100);
        finish(&mut state, &backed, 64);
        // After this launch, the driver has no graph memory reserved.
        state.see(0);
        run(&mut state, &third, false, S, 0);
        assert_eq!(third.bytes(), 100);
    }

    #[test]
    fn a_failed_launch_teaches_nothing_and_leaves_what_it_took() {
        let (mut state, graph) = (State::default(), need(100));
        for (reserved, left) in [(64, true), (64, false), (32, false)] {
            let (launch, _) = start(&mut state, &graph, false, S);
            assert!(!launch.backed);
            end(&mut state, &launch);
            state.see(reserved);
            assert_eq!(state.conclude(&launch, false), left, "{reserved}");
            give_back(&mut state);
        }
        assert_eq!((graph.bytes(), graph.epoch()), (100, 0));
    }

    #[test]
    fn a_failed_launch_after_a_trim_is_known_to_have_taken_memory() {
        let (mut state, graph) = (State::default(), need(100));
        run(&mut state, &graph, false, S, 100);
        let mut launch = begin(&mut state, &graph, false, T);
        state.see(40);
        state.begin_anew(&mut launch);
        pay(&mut state, &mut launch);
        end(&mut state, &launch);
        state.see(80);
        assert!(state.conclude(&launch, false));
    }

    #[test]
    fn unpaid_growth_is_charged() {
        let (mut state, graph) = (State::default(), need(100));
        run(&mut state, &graph, false, S, 100);
        assert_eq!(state.see(164), 64);
        state.held += 64;
        assert_eq!((state.see(164), give_back(&mut state)), (0, 0));
    }

    #[test]
    fn launches_under_way_survive_the_end_of_the_last_context() {
        let (mut state, graph, other) = (State::default(), need(100), need(100));
        run(&mut state, &graph, false, S, 64);
        assert_eq!(graph.epoch(), state.own.epoch);
        let gone = state.clear();
        assert_eq!((gone.held, gone.used), (64, 64));
        assert_eq!((state.held, state.used, state.own.ended), (0, 0, 1));
        // A second graph belongs to a context of another device, which still exists.
        run(&mut state, &other, false, S, 100);
        assert!(!is_backed(&mut state, &graph, false, S));
        // Bytes for a launch are being charged.
        let mut paying = begin(&mut state, &other, true, T);
        state.callers += 1;
        state.clear();
        assert!(state.under_way());
        state.callers -= 1;
        pay(&mut state, &mut paying);
        finish(&mut state, &paying, 0);
        assert!(!state.under_way());
    }

    #[test]
    fn a_launch_under_way_is_not_the_first_one_of_the_next_context() {
        let (mut state, graph, other) = (State::default(), need(100), need(100));
        let (launch, _) = start(&mut state, &graph, false, S);
        state.clear();
        run(&mut state, &other, false, S, 0);
        end(&mut state, &launch);
        state.see(50);
        state.conclude(&launch, true);
        assert_eq!(graph.bytes(), 100, "another launch ran in between");
    }
}
