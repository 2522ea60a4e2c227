//! What is measured.

/// One thing that programs do.
pub struct Case {
    /// As on the command line.
    pub name: &'static str,
    /// For people.
    pub what: &'static str,
    /// Whether it may depend on the number of live allocations.
    pub counts_live: bool,
    /// The most that the library may add: ns.
    pub aim: Option<f64>,
}

/// The start and end of a whole program, in place of a loop in a worker.
pub const START: &str = "start";

/// All of them, in the order of the table.
pub const CASES: &[Case] = &[
    Case {
        name: "in-block",
        what: "cuMemAlloc + cuMemFree, 4 KiB in a held block",
        counts_live: true,
        aim: Some(60.0),
    },
    Case {
        name: "new-small",
        what: "cuMemAlloc + cuMemFree, 4 KiB in a new block",
        counts_live: true,
        aim: None,
    },
    Case {
        name: "new-block",
        what: "cuMemAlloc + cuMemFree, 2 MiB",
        counts_live: true,
        aim: None,
    },
    Case {
        name: "async",
        what: "cuMemAllocAsync + cuMemFreeAsync, warm pool",
        counts_live: true,
        aim: Some(40.0),
    },
    Case {
        name: "info",
        what: "cuMemGetInfo",
        counts_live: false,
        aim: None,
    },
    Case {
        name: "launch",
        what: "cuLaunchKernel of a known kernel",
        counts_live: false,
        aim: None,
    },
    Case {
        name: "update",
        what: "cuGraphExecUpdate, 100 known kernels",
        counts_live: false,
        aim: None,
    },
    Case {
        name: "set-kernel",
        what: "cuGraphExecKernelNodeSetParams of a known kernel",
        counts_live: false,
        aim: None,
    },
    Case {
        name: "dlsym",
        what: "dlsym of a foreign symbol",
        counts_live: false,
        aim: None,
    },
    Case {
        name: START,
        what: "start and end of /bin/true",
        counts_live: false,
        aim: Some(300_000.0),
    },
];
