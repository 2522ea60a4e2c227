//! Measures the memory that the library of gpulimit takes in a process.

use crate::case::{Axis, Case, Point};
use crate::run::{Resident, Setup, Way};
use std::error::Error;
use std::fmt::Write as _;

/// The number of live allocations that are measured: first of 4 KiB each, second of 2 MiB each.
const MANY: [u32; 2] = [1_000_000, 25_000];
/// The most bytes that gpulimit is allowed to take for each live allocation.
const AIM_EACH: f64 = 64.0;
/// The most bytes that gpulimit is allowed to take in a process without live allocations.
const AIM_BASE: u64 = 1 << 20;

/// The kinds of allocations whose footprint is measured. Allocations of 4 KiB and of 2 MiB
/// alternate in this list.
static KINDS: [Case; 4] = [
    Case {
        name: "hold-small",
        what: "cuMemAlloc, 4 KiB",
    },
    Case {
        name: "hold-blocks",
        what: "cuMemAlloc, 2 MiB",
    },
    Case {
        name: "hold-async",
        what: "cuMemAllocAsync, 4 KiB",
    },
    Case {
        name: "hold-vmm",
        what: "cuMemCreate, 2 MiB",
    },
];

/// The memory that the library of gpulimit takes in a process with a limit.
pub struct Footprint {
    kind: &'static Case,
    /// Resident bytes of the library and the files that it maps, while the process has one live
    /// allocation.
    base: u64,
    /// Resident bytes of the library that are neither pages of a file nor shared memory.
    own: u64,
    /// Resident bytes of the driver's NVML library, which are measured separately.
    nvml: u64,
    /// Bytes that gpulimit takes for each further live allocation.
    each: f64,
}

impl Footprint {
    /// Measures the footprint of gpulimit for allocations of each kind.
    pub fn all(setup: &Setup) -> Result<Vec<Self>, Box<dyn Error>> {
        let kinds = KINDS.iter().zip(MANY.into_iter().cycle());
        kinds
            .map(|(kind, many)| Self::of(setup, kind, many))
            .collect()
    }

    fn of(setup: &Setup, kind: &'static Case, many: u32) -> Result<Self, Box<dyn Error>> {
        // The process's memory outside gpulimit varies by some pages from run to run. So take the
        // smallest figures of three runs.
        let added = |live| -> Result<Resident, Box<dyn Error>> {
            let place = setup.place(Point::on(Axis::Live, live))?;
            let least = |way| -> Result<Resident, Box<dyn Error>> {
                let mut least = place.resident(kind, way)?;
                for _ in 1..3 {
                    let Resident { all, own, nvml } = place.resident(kind, way)?;
                    least.all = least.all.min(all);
                    least.own = least.own.min(own);
                    least.nvml = least.nvml.min(nvml);
                }
                Ok(least)
            };
            let (limited, bare) = (least(Way::Limited)?, least(Way::Bare)?);
            Ok(Resident {
                all: limited.all.saturating_sub(bare.all),
                own: limited.own.saturating_sub(bare.own),
                nvml: limited.nvml.saturating_sub(bare.nvml),
            })
        };
        let (base, many_of_it) = (added(1)?, added(many)?);
        Ok(Self {
            kind,
            base: base.all.saturating_sub(base.nvml),
            own: base.own,
            nvml: base.nvml,
            each: many_of_it.all.saturating_sub(base.all) as f64 / f64::from(many - 1),
        })
    }
}

/// Returns the table of footprints in Markdown.
pub fn table(footprints: &[Footprint]) -> String {
    if footprints.is_empty() {
        return String::new();
    }
    let mut table = String::from(
        "| live allocations | with one allocation: KiB | aim | private part: KiB \
         | NVML, not included: KiB | per further allocation: bytes | aim |\n\
         |---|--:|--:|--:|--:|--:|--:|\n",
    );
    for footprint in footprints {
        let Footprint {
            kind,
            base,
            own,
            nvml,
            each,
        } = footprint;
        let _ = writeln!(
            table,
            "| {} | {} | ≤ {} | {} | {} | {each:.1} | ≤ {AIM_EACH:.0} |",
            kind.what,
            base / 1024,
            AIM_BASE / 1024,
            own / 1024,
            nvml / 1024
        );
    }
    table
}

/// Prints the footprints, one JSON object per line.
pub fn print_json(footprints: &[Footprint]) {
    for footprint in footprints {
        let Footprint {
            kind,
            base,
            own,
            nvml,
            each,
        } = footprint;
        print!(
            r#"{{"case": "{}", "base_bytes": {base}, "own_bytes": {own}, "#,
            kind.name
        );
        println!(r#""nvml_bytes": {nvml}, "bytes_per_allocation": {each:.1}}}"#);
    }
}
