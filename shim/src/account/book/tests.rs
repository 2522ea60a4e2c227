use std::cell::Cell;

use gpulimit_base::device::DeviceId;

use super::*;
use crate::account::scratch::Scratch;

const MIB: u64 = 1 << 20;
const GPU: DeviceId = DeviceId::gpu([7; 16]);

fn enter(group: &Scratch) -> Book {
    let member = group.member();
    let device = member.device(GPU, 1000 * MIB);
    Book::new(0, device.expect("a device"))
}

fn shown(book: &Book, category: Category) -> u64 {
    let ledger = book.group.member().ledger();
    ledger.usage(ledger.find_device(&GPU).expect("known")).by[category as usize]
}

#[test]
fn free_is_what_the_group_has_free_and_what_is_idle_here() {
    let group = Scratch::new(&["max=100M"]);
    let book = enter(&group);
    let free = || book.free() / MIB;
    assert_eq!(free(), 100);
    assert!(book.try_charge_ahead(20 * MIB));
    assert_eq!(free(), 100);
    book.adjust_headroom(4 * MIB as i64);
    assert_eq!(free(), 96, "4 MiB stay in a reserve");
    assert_eq!(book.reclaimable(20 * MIB), 16 * MIB);
    book.adjust_headroom(10 * MIB as i64);
    assert_eq!(free(), 86);
    assert_eq!(book.reclaimable(20 * MIB), 6 * MIB);
    assert_eq!(book.reclaimable(5 * MIB), 0);
    book.add(Category::Pools, 32 * MIB);
    book.add(Category::Graphs, 64 * MIB);
    book.add(Category::Linear, 100 * MIB);
    assert_eq!(book.reclaimable(20 * MIB), 102 * MIB);
    book.adjust_headroom(-(10 * MIB as i64));
    assert_eq!(free(), 96);
}

#[test]
fn bytes_in_use_are_published_by_category() {
    let group = Scratch::new(&["max=100M"]);
    let book = enter(&group);
    assert!(book.try_charge(MIB));
    for (bytes, category) in (1..).zip(Category::ALL) {
        book.add(category, 10 * bytes);
        book.remove(category, bytes);
        assert_eq!(shown(&book, category), 9 * bytes);
    }
    book.set_driver(63, 100);
    assert_eq!(shown(&book, Category::Driver), 100);
    book.set_driver(100, 30);
    assert_eq!(shown(&book, Category::Driver), 30);
    // The named bytes are NVML's figure without the driver's own memory. NVML does not report the
    // 55 bytes of managed memory.
    assert_eq!(book.named(), 9 * (1 + 2 + 3 + 4 + 5));
}

#[test]
fn a_figure_that_never_stands_still_is_published_a_limited_number_of_times() {
    let (figure, shown) = (Cell::new(0), Cell::new(0));
    let next = || {
        figure.set(figure.get() + 1);
        figure.get()
    };
    publish(next, |bytes| shown.set(bytes));
    assert_eq!(figure.get(), 2 * u64::from(SHOWINGS));
    assert_eq!(shown.get(), figure.get() - 1);
    let changes = || {
        figure.set((figure.get() + 1).min(7));
        figure.get()
    };
    figure.set(0);
    publish(changes, |bytes| shown.set(bytes));
    assert_eq!(shown.get(), 7, "the figure no longer changes");
}
