//! A world of a test's own: a simulated machine, a root with one group, programs, and two
//! independent judges: the machine's true figures and the ledger.
//!
//! Dropping the [`World`] removes everything.

mod artefacts;
mod freezer;
mod machine;
mod session;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use gpulimit_base::device::DeviceId;
use gpulimit_base::identity::Identity;
use gpulimit_base::units::Size;
use gpulimit_group::{Created, Group, Root};
use gpulimit_ledger::{Category, Event, EventKind, Ledger, Usage, Witness};
use gpulimit_limits::{Key, LimitSet, Selector, Setting};
use gpulimit_support::{Scratch, clean};
pub use gpulimit_support::{eventually, free_port, may_mount, text};

pub use artefacts::{
    built_program, compile, controller, demo, driver, faulty_shim, header, library, nvml_bindings,
    older, program, real_drivers, repository, runtime, script, shim, static_runtime,
};
pub use freezer::Freezer;
pub use machine::{Gpu, Holder, Machine};
pub use session::Session;

/// 2^20 bytes.
pub const MIB: u64 = 1 << 20;
/// Bytes of a context on the simulated driver: 518 MiB.
pub const CONTEXT: u64 = 518 * MIB;
/// The granularity of device memory in bytes, and the largest difference between gpulimit's figure
/// and the driver's.
pub const BLOCK: u64 = 2 * MIB;
/// The group of the programs of a world.
pub const GROUP: &str = "world";
/// An hour in nanoseconds, for the knobs of waits: a wait that the test ends by setting the knob to
/// less.
pub const HOUR: &str = "3600000000000";

/// A machine, a root and a group.
pub struct World {
    machine: Machine,
    root: Root,
    created: Option<Created>,
    folder: Scratch,
}

impl World {
    /// Makes a world with one GPU and a group that may use `cap` bytes of it.
    pub fn new(cap: u64) -> World {
        World::with(cap, &[])
    }

    /// Makes such a world with these knobs of the simulated driver.
    pub fn with(cap: u64, knobs: &[(&str, &str)]) -> World {
        let mut world = World::without_group(knobs);
        let limits = LimitSet::all(Size::Bytes(cap));
        world.created = Some(world.root.create(GROUP, &limits).expect("a group"));
        world
    }

    /// Makes a world whose root has no group.
    pub fn without_group(knobs: &[(&str, &str)]) -> World {
        let folder = Scratch::in_memory();
        std::fs::create_dir(folder.at("root")).expect("a root");
        World {
            machine: Machine::new(folder.at("machine"), knobs),
            root: Root::at(folder.at("root")).expect("a root"),
            created: None,
            folder,
        }
    }

    /// Returns the simulated machine.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Returns the root of the groups.
    pub fn root(&self) -> &Root {
        &self.root
    }

    /// Returns the path of a file in this world's folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.at(name)
    }

    /// Returns the world's group, or the only group there is.
    pub fn group(&self) -> Group {
        match &self.created {
            Some(created) => created.group.clone(),
            None => {
                let groups = self.root.groups().expect("groups");
                assert_eq!(groups.len(), 1, "{groups:?}");
                groups[0].clone()
            }
        }
    }

    /// Makes a group `world/NAME` below the world's, with settings such as `max=4G` and
    /// `on_limit=wait`.
    pub fn below(&self, name: &str, settings: &[&str]) -> Group {
        let name = format!("{GROUP}/{name}");
        let mut limits = LimitSet::default();
        change(&mut limits, settings);
        let created = self.root.create(&name, &limits).expect("a group");
        created.group
    }

    /// Changes settings of the world's group, such as `on_limit=wait`.
    pub fn settings(&self, settings: &[&str]) {
        let written = self.group().write_limits(|limits| change(limits, settings));
        written.expect("written");
    }

    /// Returns the events of a kind in the world's group.
    pub fn events(&self, kind: EventKind) -> Vec<Event> {
        let mut events = self.ledger().events(0);
        events.retain(|event| event.what.kind == kind);
        events
    }

    /// Starts `gpu-script` in a group below the world's, with a context.
    pub fn on_gpu_in(&self, below: &str) -> Session {
        let mut command = self.limited(program());
        command.env("GPULIMIT_GROUP", format!("{GROUP}/{below}"));
        let mut session = Session::start(command);
        let answer = session.say("start");
        if answer != "0 0" {
            let (_, errors) = session.end();
            panic!("{answer}: {errors}");
        }
        session
    }

    /// Returns a program on the machine, without the library.
    pub fn bare(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        clean(&mut command).env("GPULIMIT_ROOT", self.root.path());
        self.machine.enter(&mut command);
        command
    }

    /// Returns a program with the library and without a limit in its environment.
    pub fn preloaded(&self, program: &Path) -> Command {
        let mut command = self.bare(program);
        command.env("LD_PRELOAD", self.machine.preload(Some(shim())));
        // scripts/prove-hooks names a hook to leave out, or records which functions a test calls.
        if let Some(hook) = std::env::var_os("GPULIMIT_DEBUG_MUTANT") {
            command.env("GPULIMIT_DEBUG_MUTANT", hook);
        }
        if let (Some(folder), Some(test)) = (
            std::env::var_os("GPULIMIT_RECORD"),
            std::thread::current().name(),
        ) {
            command.env("GPULIMIT_SCRIPT_RECORD", Path::new(&folder).join(test));
        }
        command
    }

    /// Returns a program in the group.
    pub fn limited(&self, program: &Path) -> Command {
        let mut command = self.preloaded(program);
        command.env("GPULIMIT_GROUP", GROUP);
        command
    }

    /// Starts `gpu-script` in the group, which waits for commands.
    pub fn start(&self) -> Session {
        self.start_with(&[])
    }

    /// Starts `gpu-script` in the group with these arguments.
    pub fn start_with(&self, arguments: &[&str]) -> Session {
        let mut command = self.limited(program());
        command.args(arguments);
        Session::start(command)
    }

    /// Starts `gpu-script` in the group with a context.
    pub fn on_gpu(&self) -> Session {
        let mut session = self.start();
        assert_eq!(session.say("start"), "0 0");
        session
    }

    /// Opens the ledger of the world's group.
    pub fn ledger(&self) -> Arc<Ledger> {
        Arc::new(Ledger::open(&self.group().ledger_path()).expect("the ledger"))
    }

    /// Returns the ledger's figures of a GPU, which are 0 for a GPU that it does not know.
    pub fn usage(&self, gpu: usize) -> Usage {
        let id: DeviceId = self.machine.gpu(gpu).uuid.parse().expect("a UUID");
        let ledger = self.ledger();
        let device = ledger.find_device(&id);
        device
            .map(|device| ledger.usage(device))
            .unwrap_or_default()
    }

    /// Returns the charged bytes that the driver itself would also show as used.
    pub fn counted(&self, gpu: usize) -> u64 {
        let usage = self.usage(gpu);
        (usage.charged - usage.idle) - usage.by[Category::Managed as usize]
    }

    /// Changes the group's limit.
    pub fn set(&self, cap: u64) {
        let change = |limits: &mut LimitSet| limits.set(Selector::All, Key::Max, Size::Bytes(cap));
        self.group().write_limits(change).expect("written");
    }

    /// Asserts, while the programs rest, that the ledger agrees with the machine to a block, and
    /// that the limit was never passed.
    #[track_caller]
    pub fn judge(&self, cap: u64) {
        for gpu in 0..self.machine.gpus().len() {
            self.judge_gpu(gpu, cap);
        }
    }

    /// Asserts the same for one GPU.
    #[track_caller]
    pub fn judge_gpu(&self, gpu: usize, cap: u64) {
        let (truth, counted) = (self.machine.gpu(gpu), self.counted(gpu));
        assert!(
            truth.peak <= cap,
            "GPU {gpu}: peak {} of {cap} bytes: {} too many",
            truth.peak,
            truth.peak - cap
        );
        assert!(
            truth.used.abs_diff(counted) <= BLOCK,
            "GPU {gpu}: the driver holds {}, the ledger counts {counted}: {:?}",
            truth.used,
            self.usage(gpu)
        );
        let usage = self.usage(gpu);
        assert!(usage.charged <= cap.max(truth.peak), "charged {usage:?}");
        assert!(usage.charged >= truth.used, "{usage:?} for {truth:?}");
        assert_eq!(usage.undecided, 0);
    }

    /// Asserts, after the last program, that neither the machine nor the ledger holds anything, and
    /// that the limit was never passed.
    #[track_caller]
    pub fn judge_end(&self, cap: u64) {
        self.settle();
        for (gpu, truth) in self.machine.gpus().iter().enumerate() {
            assert_eq!(self.machine.host()[1], 0, "the host was out of memory");
            assert!(truth.peak <= cap, "peak {} of {cap}", truth.peak);
            let usage = self.usage(gpu);
            assert_eq!(
                (usage.charged, usage.undecided),
                (0, 0),
                "left over: {usage:?}"
            );
        }
    }

    /// Waits until the memory of dead processes is free on the machine and uncharged in the ledger.
    #[track_caller]
    pub fn bury(&self) {
        let own = gpulimit_sim::process::namespace();
        // A verb that has ended keeps its memory while a child that it has killed still ends.
        let is_missing = |holder: &Holder| {
            holder.namespace == own && !Path::new("/proc").join(holder.pid.to_string()).exists()
        };
        let is_dead = |holder: &Holder| holder.dying || is_missing(holder);
        let dead = |gpu: &Gpu| gpu.holders.iter().any(is_dead);
        let gone = || !self.machine.gpus().iter().any(dead);
        assert!(
            eventually(gone),
            "the dead have nothing: {:?}",
            self.machine.gpus()
        );
        let clean = || self.ledger().clean(&Coroner(&self.machine)).draining == 0;
        assert!(eventually(clean), "the ledger is clean");
    }

    /// Waits until the machine and the ledger are empty.
    #[track_caller]
    pub fn settle(&self) {
        let empty = || self.machine.gpus().iter().all(|gpu| gpu.used == 0);
        assert!(
            eventually(empty),
            "the machine is empty: {:?}",
            self.machine.gpus()
        );
        self.bury();
    }
}

/// Changes settings of all GPUs.
fn change(limits: &mut LimitSet, settings: &[&str]) {
    for setting in settings {
        match setting.parse().expect("a setting") {
            Setting::Size(key, extent) => limits
                .set_extent(Selector::All, key, extent, &[], false)
                .expect("a size"),
            Setting::Option(key, value) => limits.options.set(key, &value).expect("checked"),
        }
    }
}

/// Tells from the machine which dead processes still hold memory.
struct Coroner<'a>(&'a Machine);

impl Witness for Coroner<'_> {
    fn holds_memory(&self, process: &Identity, _: &DeviceId, _: bool) -> Option<bool> {
        let gpus = self.0.gpus();
        let holders = gpus.iter().flat_map(|gpu| &gpu.holders);
        let mut own = holders.filter(|holder| holder.pid == process.pid);
        Some(own.any(|holder| holder.bytes > 0))
    }
}

/// Runs a program to its end.
#[track_caller]
pub fn finish(mut command: Command) -> Output {
    gpulimit_support::finish(command.stdin(Stdio::null()))
}
