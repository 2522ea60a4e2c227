//! Simulated machines and child processes for tests. A child runs the test's body, with its role in
//! an environment variable.

use std::ffi::{CString, c_void};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use gpulimit_sim::machine::{self, BLOCK};
use gpulimit_sim::{grant, process};
pub use gpulimit_support::eventually;
use gpulimit_support::{Running, Scratch, clean, is_built, repository, text};

pub const ROLE: &str = "GPULIMIT_SIM_TEST_ROLE";

pub const MIB: u64 = 1 << 20;
pub const CONTEXT: u64 = 543_162_368;

/// Returns the folder with the built libraries of the simulated driver.
fn libraries() -> &'static Path {
    static LIBRARIES: OnceLock<PathBuf> = OnceLock::new();
    LIBRARIES.get_or_init(|| {
        // The test program is …/target/debug/deps/sim-0123, so its third parent is …/target.
        let exe = std::env::current_exe().expect("the test program has a path");
        let target = exe.ancestors().nth(3).expect("a target folder").to_owned();
        if !is_built() {
            let mut build = Command::new(repository().join("scripts/sim"));
            build.arg("true").env("CARGO_TARGET_DIR", &target);
            let status = clean(&mut build).status().expect("scripts/sim runs");
            assert!(status.success(), "scripts/sim could not build the driver");
        }
        target.join("sim-driver")
    })
}

/// A simulated machine that only this test uses.
pub struct Machine {
    folder: Scratch,
    knobs: Vec<(String, String)>,
}

impl Machine {
    pub fn new(knobs: &[(&str, &str)]) -> Machine {
        let folder = Scratch::in_memory();
        let knobs = knobs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        Machine { folder, knobs }
    }

    /// Returns the path of a file in the folder of this machine.
    pub fn at(&self, name: &str) -> PathBuf {
        self.folder.at(name)
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        clean(&mut command)
            .env("GPULIMIT_SIM_STATE", self.at("machine"))
            .env("LD_LIBRARY_PATH", libraries())
            .envs(self.knobs.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        command
    }

    /// Starts the calling test again, as a child process with this role.
    pub fn spawn(&self, role: &str) -> Running {
        self.spawn_with(role, &[])
    }

    /// Starts the calling test again, as a child process with this role and these variables.
    pub fn spawn_with(&self, role: &str, variables: &[(&str, &str)]) -> Running {
        let test = std::thread::current()
            .name()
            .expect("tests have names")
            .to_owned();
        let exe = std::env::current_exe().expect("the test program has a path");
        let mut command = self.command(&exe);
        command
            .args([&test, "--exact", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .envs(variables.iter().copied());
        Running::start(&mut command)
    }

    /// Starts the calling test again, as a child process with this role, and expects that it
    /// passes.
    pub fn run(&self, role: &str) {
        let output = self.spawn(role).ended();
        assert!(
            output.status.success(),
            "role {role}: {}",
            text(&output.stdout)
        );
    }

    fn ctl(&self, arguments: &[&str]) -> String {
        let output = self
            .command(&libraries().join("gpulimit-sim-ctl"))
            .args(arguments)
            .output()
            .expect("it runs");
        assert!(output.status.success(), "{arguments:?}");
        text(&output.stdout)
    }

    pub fn knob(&self, name: &str, value: &str) {
        self.ctl(&["knob", name, value]);
    }

    /// Returns one field of the first GPU's usage, as `gpulimit-sim-ctl usage` prints it.
    pub fn number(&self, field: &str) -> u64 {
        let usage = self.ctl(&["usage"]);
        let start = usage.find(&format!("\"{field}\":")).expect("the field") + field.len() + 3;
        usage[start..]
            .chars()
            .take_while(char::is_ascii_digit)
            .collect::<String>()
            .parse()
            .expect("a number")
    }

    pub fn used(&self) -> u64 {
        self.number("used")
    }

    pub fn usage(&self) -> String {
        self.ctl(&["usage"])
    }
}

/// Returns the role that the test gave to this child process; `None` in the test that the test
/// runner started.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// Runs the body of a test in a process of its own on a simulated machine of its own.
pub fn alone(knobs: &[(&str, &str)], body: impl FnOnce(&Cuda)) {
    match role() {
        Some(_) => body(&Cuda::load()),
        None => Machine::new(knobs).run("alone"),
    }
}

/// Reads a child's output up to the next line that contains `word`. Returns the part of this line
/// that begins with `word`.
pub fn expect_line(child: &mut Child, word: &str) -> String {
    use std::io::Read;
    let out = child.stdout.as_mut().expect("piped");
    let (mut line, mut byte) = (String::new(), [0]);
    while out.read(&mut byte).expect("readable") == 1 {
        if byte[0] == b'\n' {
            // The test runner may have printed text on the same line before `word`.
            if let Some(at) = line.find(word) {
                return line[at..].to_owned();
            }
            line.clear();
        } else {
            line.push(byte[0] as char);
        }
    }
    panic!("the child ended without printing {word}");
}

/// Blocks until the parent closes this process's standard input.
pub fn wait_for_close() {
    let _ = std::io::read_to_string(std::io::stdin());
}

/// A loaded library whose functions take integers and pointers.
pub struct Library(*mut c_void);

impl Library {
    pub fn open(path: &str) -> Option<Library> {
        Self::open_with(path, libc::RTLD_NOW)
    }

    /// Opens a library with these flags of `dlopen`; `None` if that fails.
    pub fn open_with(path: &str, flags: i32) -> Option<Library> {
        let path = CString::new(path).expect("no NUL");
        // SAFETY: `path` is NUL-terminated, and loading the library runs no code that the test must
        // guard against.
        let handle = unsafe { libc::dlopen(path.as_ptr(), flags) };
        (!handle.is_null()).then_some(Library(handle))
    }

    pub fn find(&self, name: &str) -> usize {
        let name = CString::new(name).expect("no NUL");
        // SAFETY: the library is open and `name` is NUL-terminated.
        unsafe { libc::dlsym(self.0, name.as_ptr()) as usize }
    }

    /// Calls a function of the library. The C calling convention allows more arguments than the
    /// function has.
    pub fn call(&self, name: &str, arguments: &[usize]) -> i32 {
        type Function = extern "C" fn(
            usize,
            usize,
            usize,
            usize,
            usize,
            usize,
            usize,
            usize,
            usize,
            usize,
            usize,
            usize,
        ) -> i32;
        let address = self.find(name);
        assert_ne!(address, 0, "{name} is exported");
        let mut a = [0; 12];
        a[..arguments.len()].copy_from_slice(arguments);
        // SAFETY: a function of the driver interface, which takes integers and pointers. The tests
        // keep the memory behind these pointers alive.
        let function: Function = unsafe { std::mem::transmute(address) };
        function(
            a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11],
        )
    }

    /// Calls a function whose first argument is a pointer to its result, and returns that result.
    pub fn get(&self, name: &str, arguments: &[usize]) -> Result<u64, i32> {
        let mut result = 0u64;
        let mut all = vec![&raw mut result as usize];
        all.extend(arguments);
        match self.call(name, &all) {
            0 => Ok(result),
            error => Err(error),
        }
    }
}

/// The simulated driver.
pub struct Cuda(pub Library);

impl std::ops::Deref for Cuda {
    type Target = Library;
    fn deref(&self) -> &Library {
        &self.0
    }
}

impl Cuda {
    pub fn load() -> Cuda {
        Cuda(Library::open("libcuda.so.1").expect("the simulated libcuda"))
    }

    /// Initialises the driver, and makes the primary context of the first GPU current.
    pub fn start(&self) {
        assert_eq!(self.call("cuInit", &[0]), 0);
        let context = self
            .get("cuDevicePrimaryCtxRetain", &[0])
            .expect("a context");
        assert_eq!(self.call("cuCtxSetCurrent", &[context as usize]), 0);
    }

    pub fn alloc(&self, bytes: u64) -> Result<u64, i32> {
        self.get("cuMemAlloc_v2", &[bytes as usize])
    }

    pub fn free(&self, address: u64) -> i32 {
        self.call("cuMemFree_v2", &[address as usize])
    }

    /// Returns the used bytes of the first GPU minus the bytes of one context.
    pub fn beyond(&self) -> u64 {
        used() - CONTEXT
    }
}

/// Returns the used bytes of the first GPU, as the simulated machine counts them.
pub fn used() -> u64 {
    let machine = machine::Machine::get().expect("a machine");
    process::scan(machine, true);
    grant::used(machine, 0) * BLOCK
}
