//! The operations that the benchmarks measure, and the conditions under which they are measured.

/// A benchmark case: an operation that the worker process repeats.
pub struct Case {
    /// The name of the benchmark case on the command line.
    pub name: &'static str,
    /// A description of the benchmark case, for the tables.
    pub what: &'static str,
}

impl Case {
    /// Returns whether the case starts and ends a whole program instead of repeating an operation.
    pub fn is_whole_program(&self) -> bool {
        [START, FIRST].contains(&self.name)
    }
}

/// A quantity that the benchmark varies in a series of measurements, such as the number of threads.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Axis {
    /// Number of 4 KiB allocations that the process holds during the measurement.
    Live,
    /// Number of threads that run the benchmark case at the same time.
    Threads,
    /// Number of processes in the group. One of them is measured; the others only sleep.
    Members,
    /// Number of other processes in the group that run the benchmark case at the same time.
    Rivals,
    /// Number of groups nested in each other; the measured process is in the innermost group.
    Depth,
    /// Number of groups with protected memory beside the group of the measured process.
    Protected,
}

impl Axis {
    pub const ALL: [Axis; 6] = [
        Axis::Live,
        Axis::Threads,
        Axis::Members,
        Axis::Rivals,
        Axis::Depth,
        Axis::Protected,
    ];

    /// Returns the name of this axis on the command line and in the head of a table.
    pub fn name(self) -> &'static str {
        match self {
            Axis::Live => "live",
            Axis::Threads => "threads",
            Axis::Members => "members",
            Axis::Rivals => "rivals",
            Axis::Depth => "depth",
            Axis::Protected => "protected",
        }
    }

    /// Returns the value that this axis has while the measurements vary another axis.
    fn usual(self) -> u32 {
        match self {
            Axis::Rivals | Axis::Protected => 0,
            _ => 1,
        }
    }
}

/// A measurement point: a value on one axis; all other axes have their usual value.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Point {
    pub axis: Option<Axis>,
    value: u32,
}

impl Point {
    /// Returns the measurement point that has `value` on `axis`.
    pub fn on(axis: Axis, value: u32) -> Self {
        Self {
            axis: Some(axis),
            value,
        }
    }

    /// Returns the value that this measurement point has on `axis`.
    pub fn at(self, axis: Axis) -> u32 {
        if self.axis == Some(axis) {
            self.value
        } else {
            axis.usual()
        }
    }

    /// Returns the value on the measurement point's own axis; `None` for a point without axis.
    pub fn value(self) -> Option<u32> {
        self.axis.map(|_| self.value)
    }

    /// Returns whether the measurement point has the usual value of its axis.
    pub fn is_usual(self) -> bool {
        self.axis.is_none_or(|axis| self.value == axis.usual())
    }
}

/// A series of measurements: one benchmark case, measured with several values of one axis.
pub struct Series {
    pub case: &'static Case,
    pub axis: Option<Axis>,
    values: &'static [u32],
    /// The aim: the most nanoseconds that gpulimit is allowed to add to one iteration, and the
    /// largest value of the axis for which this bound holds.
    pub aim: Option<(f64, u32)>,
}

impl Series {
    pub fn points(&self) -> impl Iterator<Item = Point> + '_ {
        let axis = self.axis;
        self.values.iter().map(move |&value| Point { axis, value })
    }

    /// Returns the most nanoseconds that gpulimit is allowed to add to an iteration at this
    /// measurement point; `None` if the point has no such bound.
    pub fn aim_at(&self, point: Point) -> Option<f64> {
        self.aim
            .filter(|&(_, up_to)| point.value <= up_to)
            .map(|(aim, _)| aim)
    }
}

/// The benchmark case that starts and ends a program which does not use a GPU.
pub const START: &str = "start";
/// The benchmark case that starts a program, launches the program's first kernel, and ends it.
pub const FIRST: &str = "first";

const fn case(name: &'static str, what: &'static str) -> Case {
    Case { name, what }
}

static IN_BLOCK: Case = case("in-block", "cuMemAlloc + cuMemFree, 4 KiB in a held block");
static NEW_SMALL: Case = case("new-small", "cuMemAlloc + cuMemFree, 4 KiB in a new block");
static NEW_BLOCK: Case = case("new-block", "cuMemAlloc + cuMemFree, 4 MiB");
static ASYNC: Case = case("async", "cuMemAllocAsync + cuMemFreeAsync, warm pool");
static INFO: Case = case("info", "cuMemGetInfo");
static LAUNCH: Case = case("launch", "cuLaunchKernel of a known kernel");
static UPDATE: Case = case("update", "cuGraphExecUpdate, 100 known kernels");
static SET_KERNEL: Case = case(
    "set-kernel",
    "cuGraphExecKernelNodeSetParams of a known kernel",
);
static QUERY: Case = case("query", "cuEventQuery, which passes the gate");
static REPLAY: Case = case("replay", "cuGraphLaunch, 100 known kernels");
static DLSYM: Case = case("dlsym", "dlsym of a symbol outside the driver");
static IMAGE: Case = case(
    "image",
    "cuModuleLoadData + cuModuleUnload, a compressed image",
);
static BEGIN: Case = case(START, "start and end of /bin/true");
static FIRST_KERNEL: Case = case(FIRST, "a program that launches one kernel");

const LIVE: &[u32] = &[1, 1_000, 100_000, 1_000_000];
const THREADS: &[u32] = &[1, 2, 4, 8, 16, 64];

const fn along(
    case: &'static Case,
    axis: Axis,
    values: &'static [u32],
    aim: Option<(f64, u32)>,
) -> Series {
    Series {
        case,
        axis: Some(axis),
        values,
        aim,
    }
}

const fn single(case: &'static Case, aim: Option<f64>) -> Series {
    Series {
        case,
        axis: None,
        values: &[0],
        aim: match aim {
            Some(aim) => Some((aim, 0)),
            None => None,
        },
    }
}

/// All series of measurements, in the order of the tables on the benchmark page.
pub static SERIES: &[Series] = &[
    along(&IN_BLOCK, Axis::Live, LIVE, Some((60.0, 1_000_000))),
    along(&NEW_SMALL, Axis::Live, LIVE, None),
    along(&NEW_BLOCK, Axis::Live, LIVE, None),
    along(&ASYNC, Axis::Live, &[1, 100_000], Some((40.0, 100_000))),
    single(&LAUNCH, Some(2.0)),
    single(&REPLAY, None),
    single(&QUERY, None),
    single(&INFO, None),
    single(&UPDATE, None),
    single(&SET_KERNEL, None),
    single(&DLSYM, None),
    single(&IMAGE, None),
    single(&BEGIN, Some(300_000.0)),
    single(&FIRST_KERNEL, None),
    along(&IN_BLOCK, Axis::Threads, THREADS, None),
    along(&ASYNC, Axis::Threads, THREADS, None),
    along(&QUERY, Axis::Threads, THREADS, None),
    along(
        &NEW_BLOCK,
        Axis::Members,
        &[1, 8, 64, 256, 1_024],
        Some((300.0, 8)),
    ),
    along(&INFO, Axis::Members, &[1, 8, 64, 256, 1_024], None),
    along(&NEW_BLOCK, Axis::Rivals, &[0, 1, 3, 7], None),
    along(&NEW_BLOCK, Axis::Depth, &[1, 2, 4, 8], None),
    along(&NEW_BLOCK, Axis::Protected, &[0, 1, 10, 100], None),
];
