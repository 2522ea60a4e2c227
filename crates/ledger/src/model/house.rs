//! Slots that are claimed, charged and cleaned, under every value that the memory model allows,
//! with a bounded number of preemptions.

use super::super::charge::UNIT;
use super::super::level::{self, Level, Pressure};
use super::super::reap::Witness;
use super::super::{DeviceIndex, Ledger, Slot};
use super::play::{identity, words};
use super::weak::bounded_model;
use super::word::{self, Mode};
use super::{explorer, fault};
use gpulimit_base::device::DeviceId;
use gpulimit_base::identity::Identity;
use loom::thread;
use std::sync::Arc;

/// A ledger in which members come and go.
#[derive(Clone)]
struct House {
    ledger: &'static Arc<Ledger>,
    device: DeviceIndex,
}

/// Of the dead the driver has freed everything.
struct Alone;

impl Witness for Alone {
    fn holds_memory(&self, _: &Identity, _: &DeviceId, _: u64) -> Option<bool> {
        Some(false)
    }
}

impl Pressure for Alone {
    fn reclaim(&self, _: DeviceIndex) -> bool {
        false
    }

    fn witness(&self) -> &dyn Witness {
        self
    }
}

impl House {
    fn join(&self, process: usize) -> Slot {
        self.ledger.claim(&identity(process), "").expect("a slot")
    }

    fn levels<'a>(&self, slot: &'a Slot, max: u64) -> [Level<'a>; 1] {
        [Level {
            slot,
            device: self.device,
            max: max * UNIT,
            protection: None,
            keeps_low: false,
        }]
    }

    fn try_charge(&self, slot: &Slot, n: u64) -> bool {
        level::try_charge(&self.levels(slot, 10), n * UNIT)
    }

    fn charged(&self) -> u64 {
        self.ledger.charged(self.device) / UNIT
    }
}

/// In each run `set` makes what is there at the beginning, `run` is under loom, and whoever it
/// returns leaves.
fn house<T: 'static>(
    set: impl Fn(&House) -> T + Send + Sync + 'static,
    run: impl Fn(&House, T) -> Vec<Slot> + Send + Sync + 'static,
) {
    let ledger = Ledger::open(std::path::Path::new("0")).expect("memory");
    let ledger: &'static Arc<Ledger> = Box::leak(Box::new(Arc::new(ledger)));
    let device = ledger
        .device(DeviceId::gpu([0xa5; 16]), 80 << 30)
        .expect("a device");
    word::watch(words(0, ledger, device));
    let house = House { ledger, device };
    let preemptions = if super::is_deep() { 4 } else { 2 };
    bounded_model(Some(preemptions), move || {
        word::set_mode(Mode::Plain);
        explorer::restart_clock();
        super::play::empty(0, ledger);
        let members = set(&house);
        word::weaken(words(0, ledger, device).map(|(_, word)| word));
        let members = run(&house, members);
        word::rest();
        drop(members);
    });
}

#[test]
fn a_newcomer_is_seen_or_sees() {
    house(
        |house| house.join(0),
        |house, member| {
            let newcomers = house.clone();
            let handle = thread::spawn(move || {
                let slot = newcomers.join(1);
                let granted = newcomers.try_charge(&slot, 6);
                (slot, granted)
            });
            let mine = house.try_charge(&member, 6);
            let (slot, theirs) = handle.join().expect("the newcomer");
            assert!(!(mine && theirs), "both were granted");
            vec![member, slot]
        },
    );
}

#[test]
fn who_cleans_and_who_claims_agree_about_a_slot() {
    house(
        |house| {
            let dead = house.join(0);
            level::charge_unchecked(&house.levels(&dead, 10), 4 * UNIT);
            super::play::die(0, dead);
        },
        |house, ()| {
            let newcomers = house.clone();
            let handle = thread::spawn(move || {
                let slot = newcomers.join(1);
                let granted = newcomers.try_charge(&slot, 6);
                (slot, granted)
            });
            house.ledger.clean(&Alone);
            let (slot, granted) = handle.join().expect("the newcomer");
            let charged = slot.charged(house.device) / UNIT;
            assert_eq!(charged, if granted { 6 } else { 0 }, "a charge was lost");
            house.ledger.clean(&Alone);
            assert_eq!(house.charged(), charged, "what the dead one had is left");
            vec![slot]
        },
    );
}

#[test]
#[should_panic(expected = "both were granted")]
fn a_missing_fence_is_found() {
    fault::set(fault::Fault::FenceMissing);
    house(
        |house| [house.join(0), house.join(1)],
        |house, [member, other]| {
            let others = house.clone();
            let handle = thread::spawn(move || {
                let granted = others.try_charge(&other, 6);
                (other, granted)
            });
            let mine = house.try_charge(&member, 6);
            let (slot, theirs) = handle.join().expect("the other");
            // Nobody is to leave while loom unwinds.
            let both = mine && theirs;
            if both {
                word::rest();
                drop((member, slot));
                panic!("both were granted");
            }
            vec![member, slot]
        },
    );
}
