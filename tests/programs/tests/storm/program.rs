//! Random programs for `gpu-script`.

use std::path::Path;

use crate::tempest::one_of;
use gpulimit_support::Random;

/// The number of files, for each kind of memory, through which processes share memory.
const PLACES: usize = 8;

const SIZES: &[&str] = &[
    "1", "512", "20000", "20000", "700000", "1M", "1048577", "2M", "2M+1", "3M", "9M", "17M", "33M",
];

/// Commands that take something, each with the commands that give it back. NAME is a new name, SIZE
/// and PLACE are placeholders.
const KINDS: &[(&str, &str)] = &[
    ("alloc NAME SIZE", "free NAME"),
    ("alloc NAME SIZE", "free NAME"),
    ("alloc NAME SIZE", "free NAME"),
    ("pitch NAME SIZE 3", "free NAME"),
    ("managed NAME SIZE", "free NAME"),
    ("many NAME 20 300000", "free-many NAME"),
    ("create NAME 4M 0", "release NAME"),
    (
        "create NAME 6M 0;reserve NAMEr 6M;map NAMEr 0 NAME 6M;release NAME",
        "unmap NAMEr 0 6M",
    ),
    ("async NAME SIZE", "free-async NAME"),
    ("async NAME SIZE", "free NAME"),
    ("async-from NAME pool SIZE work", "free-async NAME work"),
    ("module NAME SIZE", "unload NAME"),
    ("library NAME 3M;library-launch NAME", "unload-library NAME"),
    (
        "kernel-library NAME 3000;library-launch NAME",
        "unload-library NAME",
    ),
    ("array NAME 300,200", "destroy-array NAME"),
    ("array NAME 1000,900", "destroy-array NAME"),
    ("mipmap NAME 500,500 4", "destroy-mipmap NAME"),
    (
        "graph NAME;alloc-node NAMEa NAME SIZE;free-node NAME NAMEa;\
            instantiate NAMEe NAME;launch-graph NAMEe work;launch-graph NAMEe",
        "sync;destroy-exec NAMEe;destroy-graph NAME;trim-graphs",
    ),
    ("context NAME 0 v4;pop", "destroy NAME"),
    ("green NAME 0", "destroy-green NAME"),
];

/// The same for memory that processes share.
const SHARED: &[(&str, &str)] = &[
    ("alloc NAME SIZE;ipc-get PLACE-ipc NAME", "free NAME"),
    ("ipc-open NAME PLACE-ipc", "ipc-close NAME"),
    ("create NAME 4M 0;offer PLACE-offer NAME", "release NAME"),
    ("take NAME PLACE-offer", "release NAME"),
];

const BETWEEN: &[&str] = &[
    "sync",
    "sync work",
    "event-sync",
    "trim pool 0",
    "threshold pool max",
    "threshold pool 0",
    "stream more",
    "info",
    "nvml 0",
    "processes 0 Compute v3 64",
    "set-limit 0 2048",
    "set-limit 0 1024",
    "trim-graphs",
    "free-number 77",
    "alloc big 4096G",
    "register",
    "register",
    "unregister",
    "asked 0",
    "asked 20",
    "figures",
    "captures",
];

/// What the programs of a storm may do.
#[derive(Clone, Copy, Debug)]
pub struct Climate {
    /// Whether they share memory with each other.
    pub sharing: bool,
}

/// Makes the files through which processes share memory.
pub fn prepare(folder: &Path) {
    for place in 0..PLACES {
        std::fs::write(folder.join(format!("{place}-ipc")), [0; 64]).expect("a file");
    }
}

struct Writer<'a> {
    numbers: Random,
    climate: Climate,
    folder: &'a Path,
    lines: Vec<String>,
    /// Lines that give back what the program holds.
    held: Vec<String>,
    names: usize,
}

/// Returns the program of this seed, to be run in `folder`.
pub fn script(seed: u64, climate: Climate, folder: &Path) -> String {
    let mut writer = Writer {
        numbers: Random::with_seed(seed),
        climate,
        folder,
        lines: Vec::new(),
        held: Vec::new(),
        names: 0,
    };
    writer.program();
    writer.lines.join("\n") + "\n"
}

impl Writer<'_> {
    fn add(&mut self, line: &str) {
        self.lines.push(line.to_owned());
    }

    /// Returns lines that take something, and the lines that give it back.
    fn pair(&mut self) -> (Vec<String>, Vec<String>) {
        let sharing = self.climate.sharing && self.numbers.u8(..100) < 25;
        let kinds = if sharing { SHARED } else { KINDS };
        let (take, give) = one_of(&mut self.numbers, kinds);
        self.names += 1;
        let name = format!("n{}", self.names);
        let size = one_of(&mut self.numbers, SIZES);
        let place = self.numbers.usize(..PLACES).to_string();
        let folder = self.folder.display();
        let fill = |text: &str| -> Vec<String> {
            text.replace("NAME", &name)
                .replace("SIZE", size)
                .replace("PLACE", &format!("{folder}/{place}"))
                .split(';')
                .map(str::to_owned)
                .collect()
        };
        (fill(take), fill(give))
    }

    fn step(&mut self) {
        match self.numbers.usize(..10) {
            0..5 => {
                let (take, give) = self.pair();
                self.lines.extend(take);
                self.held.push(give.join("\n"));
            }
            5..9 if !self.held.is_empty() => {
                let which = self.numbers.usize(..self.held.len());
                let give = self.held.swap_remove(which);
                self.lines.push(give);
            }
            _ => {
                let line = one_of(&mut self.numbers, BETWEEN);
                self.add(line);
            }
        }
    }

    fn steps(&mut self, most: usize) {
        for _ in 0..self.numbers.usize(..most) {
            self.step();
        }
    }

    /// Takes and gives back `times` times, in several threads at once.
    fn threads(&mut self, times: usize) {
        let threads = 1 + self.numbers.usize(..4);
        self.add(&format!("threads {threads} {{\nrepeat {times} {{"));
        let mut gives = Vec::new();
        for _ in 0..=self.numbers.usize(..6) {
            let (take, give) = self.pair();
            self.lines.extend(take);
            gives.extend(give);
        }
        if self.numbers.bool() {
            gives.reverse();
        }
        self.lines.extend(gives);
        self.add("}\n}");
    }

    fn begin(&mut self) {
        self.held.clear();
        self.add("start\nstream work\npool pool 0");
        if self.numbers.bool() {
            self.add("register");
        }
    }

    /// Adds a child that uses the GPU as far as possible, and that the program waits for or not.
    fn family(&mut self) {
        let kind = one_of(&mut self.numbers, &["fork {", "background {"]);
        self.add(kind);
        let held = std::mem::take(&mut self.held);
        self.begin();
        self.steps(6);
        if kind.starts_with('b') && self.numbers.bool() {
            self.threads(1_000_000);
        }
        self.held = held;
        self.add("}");
    }

    fn program(&mut self) {
        if self.numbers.u8(..100) < 8 {
            self.family();
        }
        self.begin();
        for _ in 0..=self.numbers.usize(..4) {
            self.steps(12);
            match self.numbers.usize(..100) {
                0..40 => self.threads(3),
                40..46 => self.family(),
                46..50 => self.add("closefrom 3"),
                50..53 => {
                    self.add("exec");
                    self.begin();
                }
                53..56 => self.add("reset 0\nstart"),
                56..60 => break,
                _ => {}
            }
        }
        if self.numbers.u8(..100) < 75 {
            self.threads(1_000_000);
        }
        let end = one_of(&mut self.numbers, &["exit 0", "exit 7"]);
        self.add(end);
    }
}
