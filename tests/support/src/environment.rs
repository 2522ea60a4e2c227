//! The environment of the programs that tests start.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Removes the variables that gpulimit and the CUDA driver read, so that a command behaves the same
/// whatever the calling shell is set up for. The variables of the tests themselves stay.
pub fn clean(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let is_read = text.starts_with("GPULIMIT_") && !text.starts_with("GPULIMIT_TEST_");
        let of_service = ["LD_PRELOAD", "LISTEN_FDS", "LISTEN_PID", "NOTIFY_SOCKET"];
        if is_read || text.starts_with("CUDA_") || of_service.contains(&&*text) {
            command.env_remove(&name);
        }
    }
    command
}

/// Returns the path of the repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns whether everything that the tests run is built already.
pub fn is_built() -> bool {
    std::env::var_os("GPULIMIT_TEST_BUILT").is_some()
}

/// Runs a script that fetches files for tests (`scripts/wheels`), unless `scripts/test` has run it.
pub fn fetch(script: &str) {
    if !is_built() {
        let _ = Command::new(repository().join("scripts").join(script)).status();
    }
}

/// Returns a TCP port of this machine that nothing listens on. The port is below those that the
/// kernel gives to programs that ask for any port, so other tests are unlikely to take it.
pub fn free_port() -> u16 {
    loop {
        let port = fastrand::u16(10_000..30_000);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Returns a program's output as text.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
