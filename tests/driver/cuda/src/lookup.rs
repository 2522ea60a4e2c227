//! `cuGetProcAddress`, in its two versions. Its rules were found by calling eight real drivers.

use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;

use gpulimit_sim::machine::Machine;
use gpulimit_sim::{Outcome, Status};

use crate::symbols::{ALIASES, SYMBOLS, Symbol};
use gpulimit_sim::abi::{Out, Text};

/// The result of a lookup.
enum Answer {
    Found(usize),
    /// The program passed an empty name. Programs do so to test whether `cuGetProcAddress` works.
    Empty,
    Unknown,
    TooOld,
}

/// Returns the rows of the symbol table, sorted by base name for fast lookups.
fn rows() -> &'static [&'static Symbol] {
    static ROWS: OnceLock<Vec<&'static Symbol>> = OnceLock::new();
    ROWS.get_or_init(|| {
        let mut rows: Vec<&Symbol> = SYMBOLS.iter().chain(ALIASES).collect();
        rows.sort_by_key(|symbol| (symbol.base, symbol.per_thread, symbol.version));
        rows
    })
}

fn look(symbol: Text, version: i32, flags: u64) -> Outcome<Answer> {
    let name = symbol.bytes()?;
    if flags > 3 {
        return Err(Status::INVALID_VALUE);
    }
    let driver = Machine::get().map_or(13_000, |machine| {
        machine.knobs.driver_version.load(Relaxed) as i32
    });
    if version > driver && driver >= 13_000 {
        return Err(Status::INVALID_VALUE);
    }
    if name.is_empty() {
        return Ok(Answer::Empty);
    }
    // A negative version means the newest variant; before driver 13.0, so does a version above the
    // driver's.
    let newest = if version < 0 {
        driver
    } else {
        version.min(driver)
    };
    let rows = rows();
    let first = rows.partition_point(|row| row.base.as_bytes() < name);
    let rows = rows[first..]
        .iter()
        .take_while(|row| row.base.as_bytes() == name);
    let exists = rows.clone().any(|row| row.version <= driver);
    let best = |per_thread| {
        rows.clone()
            .filter(|row| row.per_thread == per_thread && row.version <= newest)
            .max_by_key(|row| row.version)
    };
    let plain = best(false);
    let found = if flags >= 2 {
        twin(plain.copied(), best(true).copied())
    } else {
        plain.copied()
    };
    Ok(match found {
        Some(row) => Answer::Found(row.address.0 as usize),
        None if exists => Answer::TooOld,
        None => Answer::Unknown,
    })
}

/// Returns the variant with the per-thread default stream (the twin), unless the plain function is
/// newer.
fn twin(plain: Option<&'static Symbol>, twin: Option<&'static Symbol>) -> Option<&'static Symbol> {
    match (plain, twin) {
        (Some(plain), Some(twin)) if twin.version < plain.version => Some(plain),
        (plain, twin) => twin.or(plain),
    }
}

/// `cuGetProcAddress` of CUDA 11. For an unknown name it returns an error and does not write to
/// `pfn`.
pub fn v1(symbol: Text, pfn: Out<usize>, version: i32, flags: u64) -> Outcome<()> {
    match look(symbol, version, flags)? {
        Answer::Found(address) => pfn.put(address),
        Answer::Empty => pfn.put(0),
        Answer::Unknown | Answer::TooOld => Err(Status::NOT_FOUND),
    }
}

/// `cuGetProcAddress` of CUDA 12. For an unknown name it returns success, a NULL pointer, and a
/// status that gives the reason.
pub fn v2(
    symbol: Text,
    pfn: Out<usize>,
    version: i32,
    flags: u64,
    status: Out<i32>,
) -> Outcome<()> {
    let (address, why) = match look(symbol, version, flags)? {
        Answer::Found(address) => (address, 0),
        Answer::Empty | Answer::Unknown => (0, 1),
        Answer::TooOld => (0, 2),
    };
    pfn.put(address)?;
    status.put_if(why);
    Ok(())
}
