use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use gpulimit_ledger::{Category, EventKind, Usage};

use super::measuring::ATTEMPTS;
use super::*;
use crate::abi::SUCCESS;
use crate::account::driver_part::{Prepaid, Total};
use crate::account::openings::Opening;
use crate::account::rounding::BLOCK;
use crate::account::scratch::Scratch;

const MIB: u64 = 1 << 20;
const CAPACITY: u64 = 1000 * MIB;
const GPU: DeviceId = DeviceId::gpu([7; 16]);

/// Joins the group as a new process and opens the GPU.
fn join(group: &Scratch) -> &'static Device {
    let process = Box::leak(Box::new(Process::default()));
    let device = Device::enter(process, 0, GPU, CAPACITY, group.member());
    Box::leak(Box::new(device.expect("a device")))
}

/// Charges the request permanently. Returns false if the group refuses it.
fn charge(device: &Device, request: Request<'_>) -> bool {
    device.charge(request).map(Charged::spend).is_ok()
}

/// Charges the request permanently as idle bytes (charged, not in use). Returns false if the group
/// refuses it.
fn charge_ahead(device: &Device, request: Request<'_>) -> bool {
    device.charge_ahead(request).map(Charged::spend).is_ok()
}

/// Returns the usage of the device's group.
fn usage(device: &Device) -> Usage {
    let ledger = device.book.group.member().ledger();
    ledger.usage(ledger.find_device(&GPU).expect("known"))
}

/// Returns the charged bytes and the idle bytes (charged, not in use) of the group, in MiB.
fn charged(device: &Device) -> (u64, u64) {
    let usage = usage(device);
    (usage.charged / MIB, usage.idle / MIB)
}

fn shown(device: &Device, category: Category) -> u64 {
    usage(device).by[category as usize]
}

/// Returns the size of each request that the group refused, in MiB.
fn refusals(device: &Device) -> Vec<u64> {
    let events = device.book.group.member().ledger().events(0).into_iter();
    events
        .filter(|event| event.what.kind == EventKind::Refusal)
        .map(|event| event.what.bytes / MIB)
        .collect()
}

#[test]
fn charges_stop_at_the_limit() {
    let group = Scratch::new(&["max=100M"]);
    let device = join(&group);
    assert_eq!(
        [0, 1, CAPACITY, CAPACITY + 1].map(|bytes| device.may_hold(bytes)),
        [false, true, true, false]
    );
    assert_eq!(
        (device.book.group.max(), device.book.group.free()),
        (100 * MIB, 100 * MIB)
    );
    assert!(charge(device, Request::insisting("a", 60 * MIB)));
    assert!(!charge(device, Request::insisting("a", 50 * MIB)));
    assert!(charge(device, Request::trimming(30 * MIB)));
    assert!(!charge(device, Request::trimming(20 * MIB)));
    assert!(device.book.try_charge(10 * MIB));
    assert!(!device.book.try_charge(10 * MIB));
    assert_eq!((charged(device), device.book.group.free()), ((100, 0), 0));
    device.book.group.charge_unchecked(5 * MIB);
    assert_eq!((charged(device), device.book.group.free()), ((105, 0), 0));
    device.book.uncharge(45 * MIB);
    device.book.uncharge(0);
    assert_eq!(charged(device), (60, 0));
    device.refuse("a", 7 * MIB, None);
    assert_eq!(refusals(device), [50, 7]);
}

#[test]
fn bytes_charged_ahead_are_idle() {
    let group = Scratch::new(&["max=100M"]);
    let device = join(&group);
    assert!(charge_ahead(device, Request::insisting("a", 20 * MIB)));
    assert_eq!(charged(device), (20, 20));
    assert!(!charge_ahead(device, Request::insisting("a", 90 * MIB)));
    assert!(!charge_ahead(
        device,
        Request::insisting("a", 85 * MIB).of(95 * MIB)
    ));
    assert!(charge_ahead(device, Request::trimming(20 * MIB)));
    assert!(charge_ahead(device, Request::reclaiming(20 * MIB)));
    assert!(!charge_ahead(device, Request::trimming(50 * MIB)));
    assert!(!charge_ahead(device, Request::reclaiming(50 * MIB)));
    let room = |bytes, asked| device.charge_ahead(Request::insisting("a", bytes).of(asked));
    assert!(room(30 * MIB, 1).map(drop).is_ok());
    assert!(room(41 * MIB, 42 * MIB).is_err());
    assert_eq!(charged(device), (60, 60));
    assert_eq!(refusals(device), [90, 95, 42]);
    assert_eq!(usage(device).peak, 0, "no charged byte was in use");
    device.book.remove_idle(50 * MIB);
    device.book.group.note_usage();
    device.book.uncharge_idle(10 * MIB);
    assert_eq!((charged(device), usage(device).peak), ((50, 0), 50 * MIB));
    // One thread uses bytes before another thread has counted them as idle.
    device.book.remove_idle(10 * MIB);
    assert_eq!(charged(device), (50, 0));
    device.book.add_idle(30 * MIB);
    assert_eq!(charged(device), (50, 20));
}

#[test]
fn requests_under_way_are_not_free() {
    let group = Scratch::new(&["max=100M"]);
    let device = join(&group);
    assert!(charge_ahead(device, Request::insisting("a", 4 * MIB)));
    assert!(charge(device, Request::insisting("a", 50 * MIB)));
    let over = AtomicBool::new(false);
    let looks = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let looking = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let Some(free) = device.book.settled_free() else {
                    continue;
                };
                assert_eq!(free, 50 * MIB);
                looks.fetch_add(1, Ordering::Relaxed);
            }
        });
        // The loop runs until the other thread has read the free bytes during some requests.
        for request in 0..2_000_000 {
            std::thread::yield_now();
            assert!(!charge_ahead(device, Request::trimming(60 * MIB)));
            assert!(charge_ahead(device, Request::trimming(30 * MIB)));
            device.book.uncharge_idle(30 * MIB);
            let is_enough = request >= 2_000 && looks.load(Ordering::Relaxed) > 0;
            if is_enough || looking.is_finished() {
                break;
            }
        }
        over.store(true, Ordering::Relaxed);
        looking.join().expect("the free bytes stay the same");
    });
    assert!(looks.into_inner() > 0);
}

#[test]
fn charges_of_other_members_are_noticed() {
    let group = Scratch::new(&["max=100M"]);
    let [device, other] = [join(&group), join(&group)];
    assert!(charge(device, Request::insisting("a", 10 * MIB)));
    device.book.add(Category::Linear, 10 * MIB);
    assert!(charge_ahead(device, Request::insisting("a", 20 * MIB)));
    assert!(!device.book.has_others() && other.book.has_others());
    assert!(charge(other, Request::insisting("a", 4 * MIB)));
    assert!(device.book.has_others());
}

#[test]
fn spare_blocks_are_given_back() {
    let group = Scratch::new(&["max=100M"]);
    let device = join(&group);
    assert!(charge(device, Request::insisting("a", 5 * BLOCK)));
    assert!(!device.release_spares());
    device.keep_block();
    assert_eq!(charged(device), (10, 2));
    device.keep_block();
    assert_eq!(charged(device), (8, 2), "a thread keeps one spare block");
    assert!(device.release_spares());
    assert_eq!(charged(device), (6, 0));
    assert!(!device.release_spares());
}

#[test]
fn a_full_group_gets_back_unused_charges() {
    let group = Scratch::new(&["max=100M"]);
    let device = join(&group);
    let reclaim = |trim| {
        let request = match trim {
            true => Request::trimming(1),
            false => Request::reclaiming(1),
        };
        let index = device.book.group.member().ledger().find_device(&GPU);
        Reclaim::new(device, &request).reclaim(index.expect("known"))
    };
    assert!(charge(device, Request::insisting("a", 100 * MIB)));
    assert!(!reclaim(true));
    device.keep_block();
    assert!(
        charge(device, Request::insisting("a", 2 * MIB)),
        "a spare block"
    );
    device.book.group.mark_shared(30 * MIB as i64);
    device.part_with(30 * MIB, 30 * MIB, None);
    assert_eq!(charged(device), (70, 0), "no process holds the memory");
    assert!(charge(device, Request::insisting("a", 30 * MIB)));
    device.book.group.orphan(10 * MIB);
    assert!(charge_ahead(device, Request::reclaiming(10 * MIB)));
    device.book.group.orphan(10 * MIB);
    assert!(reclaim(true) && !reclaim(true), "orphans");
    device.keep_block();
    assert!(reclaim(false) && !reclaim(false), "a spare block");
}

#[test]
fn unused_charges_stay_while_the_group_is_below_low() {
    let group = Scratch::new(&["max=100M", "low=50M"]);
    let device = join(&group);
    assert!(charge(device, Request::insisting("a", 50 * MIB)));
    device.keep_block();
    device.give_back_unused();
    assert_eq!(charged(device), (50, 2));
    assert!(charge(device, Request::insisting("a", 10 * MIB)));
    device.give_back_unused();
    assert_eq!(charged(device), (58, 0));
}

#[test]
fn contexts_are_left_out_where_the_group_does_not_count_them() {
    let counting = Scratch::new(&["max=100M"]);
    let device = join(&counting);
    device.contexts.insert(7);
    device.book.group.set_context_hint(500);
    assert!(device.book.group.member().counts_contexts());
    assert_eq!(device.contexts.uncounted(&device.book, 1000), 0);

    let group = Scratch::new(&["max=100M", "count_context=no"]);
    let device = join(&group);
    assert!(!device.book.group.member().counts_contexts());
    assert_eq!(
        device.contexts.uncounted(&device.book, 1000),
        0,
        "there is none"
    );
    device.contexts.insert(7);
    assert_eq!(
        (
            device.book.group.context_hint(),
            device.contexts.uncounted(&device.book, 1000)
        ),
        (0, 1000)
    );
    device.book.group.set_context_hint(500);
    assert_eq!(
        (
            device.book.group.context_hint(),
            device.contexts.uncounted(&device.book, 1000)
        ),
        (500, 500)
    );
    assert_eq!(device.contexts.uncounted(&device.book, 400), 400);
    device.contexts.insert(8);
    assert_eq!(device.contexts.uncounted(&device.book, 1100), 1000);
    assert_eq!(join(&group).book.group.context_hint(), 500);
}

#[test]
fn a_pool_is_asked_for_once() {
    let group = Scratch::new(&["max=100M"]);
    let device = join(&group);
    let handle = || {
        device
            .current_pool()
            .map(|pool| pool.map(std::ptr::from_ref))
    };
    assert!(handle().is_err(), "the test has no driver");
    let pool = device.process.pools.known_or(64, || (0, false));
    device.current_pool.set(Some(pool));
    assert_eq!(handle(), Ok(Some(std::ptr::from_ref(pool))));
    device.forget_current_pool();
    assert!(handle().is_err());
}

/// Records mapped memory of `bytes` that was imported from another process.
fn import(device: &Device, handle: u64, bytes: u64) {
    device.process.vmm.imported(handle, Some(0));
    device.process.vmm.mapped(handle << 40, handle, bytes);
}

/// Records that this process has opened memory of another process.
fn open(device: &Device, address: u64, bytes: u64) {
    let opening = Opening {
        device: 0,
        context: 7,
        size: bytes,
        bytes: 0,
        count: 1,
    };
    assert!(device.process.openings.enter(address, opening));
    device.opened();
}

#[test]
fn memory_of_other_processes_may_come_without_a_call() {
    let group = Scratch::new(&["max=100M"]);
    let device = join(&group);
    assert!(!device.may_inherit());
    device.opened();
    assert!(device.may_inherit());
    device.closed();
    assert!(!device.may_inherit());
    import(device, 5, 2 * BLOCK);
    assert!(device.may_inherit());
    device.opened();
    assert!(device.may_inherit());
}

#[test]
fn growth_of_the_figure_is_memory_that_has_come_from_others() {
    let group = Scratch::new(&["max=100M"]);
    let device = join(&group);
    import(device, 5, 10 * MIB);
    open(device, 64, 20 * MIB);
    assert_eq!(device.take_over(8 * MIB), 0);
    assert_eq!(device.take_over(31 * MIB), 30 * MIB);
    assert_eq!(charged(device), (30, 0));
    assert_eq!(shown(device, Category::Vmm), 10 * MIB);
    assert_eq!(shown(device, Category::Linear), 20 * MIB);
    assert_eq!(device.take_over(31 * MIB), 0, "once");
    open(device, 128, 4 * MIB);
    open(device, 192, 6 * MIB);
    import(device, 6, 10 * MIB);
    assert_eq!(device.take_over(15 * MIB), 14 * MIB, "import and opening");
    // The device has closed all memory of other processes, so it does not look for such memory.
    let group = Scratch::new(&["max=100M"]);
    let device = join(&group);
    open(device, 64, 20 * MIB);
    device.closed();
    assert_eq!(device.take_over(20 * MIB), 0);
}

#[test]
fn taking_memory_over_gives_its_orphan_back() {
    let group = Scratch::new(&["max=100M"]);
    let [device, other] = [join(&group), join(&group)];
    let orphan = |device: &Device| {
        assert!(charge(device, Request::insisting("a", 10 * MIB)));
        device.book.group.orphan(10 * MIB);
    };
    orphan(other);
    assert_eq!(device.take_over(0), 0);
    assert_eq!(charged(device), (10, 0), "no memory was taken over");
    import(device, 5, 10 * MIB);
    assert_eq!(device.take_over(10 * MIB), 10 * MIB);
    assert_eq!(charged(device), (10, 0));
    orphan(device);
    assert_eq!(device.take_over(0), 0);
    assert_eq!(charged(device), (10, 0), "the released bytes stay charged");
    orphan(device);
    assert!(device.settle_orphans() && !device.settle_orphans());
}

#[test]
fn left_memory_is_given_back_where_the_driver_does_not_tell() {
    let group = Scratch::new(&["max=100M"]);
    let [device, other] = [join(&group), join(&group)];
    assert_eq!(device.hidden(), None);
    assert!(charge(device, Request::insisting("a", 50 * MIB)));
    device.book.group.mark_shared(10 * MIB as i64);
    device.part_with(10 * MIB, 10 * MIB, None);
    assert_eq!(charged(device), (40, 0));
    // The memory is charged to another process of the group, which has released it.
    assert!(charge(other, Request::insisting("a", 10 * MIB)));
    other.book.group.orphan(10 * MIB);
    device.part_with(0, 10 * MIB, None);
    assert_eq!(charged(device), (40, 0));
}

/// Measures with `figure` as NVML's figure. Returns the named bytes, the driver's own memory and
/// the number of attempts.
fn look(device: &Device, figure: u64, meanwhile: impl Fn(u32)) -> (Option<(u64, u64)>, u32) {
    let looks = Cell::new(0);
    let own_bytes = || {
        looks.set(looks.get() + 1);
        meanwhile(looks.get());
        Some(figure)
    };
    let total = device.total(|| {}, own_bytes);
    (
        total.map(|total| (total.named, total.beyond_named())),
        looks.get(),
    )
}

#[test]
fn the_drivers_part_is_the_figure_without_named_memory() {
    let group = Scratch::new(&["max=100M"]);
    let device = join(&group);
    assert_eq!(look(device, 0, |_| {}), (Some((0, 0)), 1));
    device.contexts.insert(7);
    assert_eq!(
        look(device, 0, |_| {}).0,
        None,
        "the driver no longer lists the process"
    );
    device.book.add(Category::Linear, 100);
    device.book.add(Category::Managed, 50);
    device.book.set_driver(0, 20);
    assert_eq!(look(device, 130, |_| {}), (Some((100, 30)), 1));
    assert_eq!(look(device, 90, |_| {}), (Some((100, 0)), 1));
    let marks = device.process.mark();
    assert_eq!(device.total(|| {}, || None).map(Total::beyond_named), None);
    assert_eq!(device.process.mark(), marks);
    look(device, 130, |_| {});
    assert!(device.process.mark() > marks);
}

#[test]
fn a_measurement_is_repeated_where_memory_changes_meanwhile() {
    let group = Scratch::new(&["max=100M"]);
    let device = join(&group);
    device.book.add(Category::Linear, 100);
    let take = || device.book.add(Category::Linear, 10);
    let free = || device.book.remove(Category::Linear, 10);
    let twice = |change: &dyn Fn()| {
        let looked = look(device, 1000, |look| {
            if look < 3 {
                change();
            }
        });
        assert!(!device.is_inexact());
        looked
    };
    assert_eq!(twice(&take), (Some((120, 880)), 3));
    assert_eq!(twice(&free), (Some((100, 900)), 3));
    // The sum of the allocations is unchanged, but memory was taken and freed meanwhile.
    let both = || {
        take();
        free();
    };
    assert_eq!(twice(&both), (Some((100, 900)), 3));
    // The measurement uses the smallest sum of the allocations that it has read.
    let all_the_time = |change: &dyn Fn()| {
        let looked = look(device, 1000, |_| change());
        assert!(device.is_inexact());
        looked
    };
    assert_eq!(all_the_time(&both), (Some((90, 910)), ATTEMPTS));
    assert_eq!(all_the_time(&take), (Some((210, 790)), ATTEMPTS));
    assert_eq!(look(device, 1000, |_| {}), (Some((220, 780)), 1));
    assert!(!device.is_inexact());
}

#[test]
fn a_call_that_ends_during_a_measurement_repeats_it() {
    let group = Scratch::new(&["max=100M"]);
    let device = join(&group);
    look(device, 1000, |_| {});
    let mark = device.process.mark();
    // A call has removed its allocation from the account. The driver frees the memory only after
    // the measurement has read NVML's figure.
    let end_call = || {
        assert_eq!(device.process.mark(), mark, "the call sees no measurement");
        device.renew(mark);
    };
    let looked = look(device, 1000, |look| {
        if look == 1 {
            end_call();
        }
    });
    assert_eq!(looked, (Some((0, 1000)), 2));
    let all_the_time = look(device, 1000, |look| {
        assert_eq!(device.is_inexact(), look == ATTEMPTS);
        device.renew(device.process.mark());
    });
    assert_eq!(all_the_time, (Some((0, 1000)), ATTEMPTS));
    assert!(device.is_inexact());
    let beside_a_context = look(device, 1000, |look| {
        if look == 1 {
            device.tear_down(|| SUCCESS, |_| {});
        }
    });
    assert_eq!(beside_a_context, (Some((0, 1000)), 2));
    assert!(!device.is_inexact());
}

#[test]
fn a_measurement_during_a_teardown_is_a_lower_bound() {
    let group = Scratch::new(&["max=100M"]);
    let device = join(&group);
    let measured = || {
        let total = device.total(|| {}, || Some(10)).expect("measured");
        assert_eq!(total.at_least, device.is_inexact());
        (total.beyond_named(), total.at_least)
    };
    let call = || {
        assert_eq!(measured(), (10, true));
        CUDA_ERROR_UNKNOWN
    };
    let after = |status| {
        assert_eq!(measured(), (10, true));
        assert_eq!(status, CUDA_ERROR_UNKNOWN);
    };
    assert_eq!(device.tear_down(call, after), CUDA_ERROR_UNKNOWN);
    assert_eq!(measured(), (10, false));
}

#[test]
fn a_measurement_is_due_when_something_may_have_changed() {
    let group = Scratch::new(&["max=100M"]);
    let device = join(&group);
    let mark = || device.process.mark();
    assert!(device.is_due(mark()), "there was no measurement");
    look(device, 10, |_| {});
    assert_ne!(device.measuring.at.load(Ordering::Relaxed), 0);
    // Makes the last measurement look recent.
    let keep = || device.measuring.at.store(u64::MAX, Ordering::Relaxed);
    keep();
    assert!(!device.is_due(mark()));
    let before = mark();
    look(device, 10, |_| {});
    keep();
    assert!(device.is_due(before), "a measurement ran during the call");
    device.opened();
    assert!(
        device.is_due(mark()),
        "NVML may attribute memory of other processes"
    );
    device.closed();
    assert!(!device.is_due(mark()));
    look(device, 10, |_| device.book.add(Category::Linear, 10));
    assert!(device.is_due(mark()), "the measurement was not exact");
}

fn panics<T>(work: impl FnOnce() -> T) {
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
    assert!(caught.is_err(), "a panic");
}

#[test]
fn a_panic_while_a_context_is_destroyed_does_not_end_measuring() {
    let group = Scratch::new(&["max=100M"]);
    let device = join(&group);
    panics(|| device.tear_down(|| panic!("a test"), |_| {}));
    panics(|| device.tear_down(|| SUCCESS, |_| panic!("a test")));
    let total = device.total(|| (), || Some(0));
    assert!(total.is_some_and(|total| !total.at_least));
}

#[test]
fn prepaid_bytes_go_back_by_themselves() {
    let group = Scratch::new(&["max=100M"]);
    let device = join(&group);
    let paid = Prepaid::pay(device, Request::insisting("a", 30 * MIB)).expect("room");
    assert_eq!(charged(device), (30, 30));
    drop(paid);
    assert_eq!(charged(device), (0, 0));
    panics(|| {
        let _paid = Prepaid::pay(device, Request::insisting("a", 30 * MIB)).expect("room");
        panic!("a test");
    });
    assert_eq!(charged(device), (30, 30), "the driver was possibly called");
    device.recover();
    assert_eq!(charged(device), (0, 0));
    panics(|| {
        let mut paid = Prepaid::none(device);
        paid.raise(Request::reclaiming(8 * MIB)).expect("room");
        paid.reserve(8 * MIB);
        paid.offer(6 * MIB);
        panic!("a test");
    });
    assert_eq!(charged(device), (8, 8), "bytes for contexts stay charged");
    device.driver_part.unreserve(&device.book, 8 * MIB);
    assert_eq!(charged(device), (0, 0));
    panics(|| {
        let mut paid = Prepaid::none(device);
        let _ = paid.promise.raise::<()>(30 * MIB, &|_| panic!("a test"));
    });
    assert!(
        !device.driver_part.await_others(Instant::now()),
        "no call is charging bytes"
    );
}

#[test]
fn a_call_that_is_not_measured_keeps_its_bytes_beside_the_reserve() {
    let group = Scratch::new(&["max=40M"]);
    let device = join(&group);
    let defers = || {
        let paid = Prepaid::pay(device, Request::insisting("a", 4 * MIB));
        paid.expect("room").defer().is_ok()
    };
    let begin = || device.measuring.begun.fetch_add(1, Ordering::SeqCst) + 1;
    let conclude = |number, figure| {
        let total = Total {
            figure,
            named: 0,
            at_least: false,
        };
        let Device { book, contexts, .. } = device;
        device.driver_part.conclude(book, contexts, number, total);
    };
    assert!(!defers(), "there was no measurement");
    conclude(begin(), 10 * MIB);
    assert_eq!(charged(device), (14, 4));
    for calls in 1..=4 {
        assert!(defers());
        assert_eq!(charged(device), (14 + 4 * calls, 4 + 4 * calls));
    }
    assert!(!defers(), "a measurement is due");
    assert_eq!(charged(device), (30, 20));
    let slow = begin();
    conclude(begin(), 12 * MIB);
    assert_eq!(charged(device), (16, 4));
    assert!(defers());
    conclude(slow, 0);
    assert_eq!(
        charged(device),
        (20, 8),
        "the figure is older than the call"
    );
    let under_way = begin();
    assert!(!defers(), "the figure may be older than the call");
    conclude(under_way, 12 * MIB);
    assert!(charge(device, Request::trimming(21 * MIB)));
    assert!(!defers(), "the reserve would not be whole");
    assert_eq!(charged(device), (37, 4));
}

#[test]
fn charges_for_a_call_go_back_by_themselves() {
    let group = Scratch::new(&["max=100M"]);
    let device = join(&group);
    let pay = || {
        device
            .charge(Request::insisting("a", 30 * MIB))
            .expect("room")
    };
    drop(pay());
    assert_eq!(charged(device), (0, 0));
    panics(|| {
        let _charged = pay();
        panic!("a test");
    });
    assert_eq!(charged(device), (30, 30), "the driver was possibly called");
    device.recover();
    assert_eq!(charged(device), (0, 0));
    let ahead = device.charge_ahead(Request::insisting("a", 30 * MIB));
    assert_eq!(charged(device), (30, 30));
    drop(ahead);
    assert_eq!(charged(device), (0, 0));
    pay().spend_as(20 * MIB);
    pay().spend_as(40 * MIB);
    assert_eq!(charged(device), (60, 0));
}

/// Bytes charged for a call must be promised at once. Otherwise another thread could uncharge them
/// before the call.
#[test]
fn bytes_charged_for_a_call_are_promised_at_once() {
    const ROUNDS: u32 = 20_000;
    let group = Scratch::new(&["max=100M"]);
    let device = join(&group);
    let over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                device.recover();
            }
        });
        let mut most = 0;
        for _ in 0..ROUNDS {
            let charges = Cell::new(0);
            let mut paid = Prepaid::none(device);
            let charge = |missing| {
                charges.set(charges.get() + 1);
                let charged = device.charge_ahead(Request::reclaiming(missing));
                charged.map(Charged::spend)
            };
            paid.promise.raise(8 * MIB, &charge).expect("room");
            most = most.max(charges.get());
        }
        over.store(true, Ordering::Relaxed);
        assert_eq!(most, 1, "each call charges only once");
    });
    assert_eq!(charged(device), (0, 0));
}
