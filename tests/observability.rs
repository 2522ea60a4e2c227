//! The files of `config/` for Prometheus and Grafana: Prometheus' own tool accepts and tests the
//! rules, the dashboard follows the rules of Grafana's linter, and both use only metrics that
//! docs/monitoring.md lists. Tests with Prometheus itself are in
//! `tests/programs/tests/sites/prometheus.rs`.

#[path = "observability/dashboard.rs"]
mod dashboard;
#[path = "observability/page.rs"]
mod page;
#[path = "observability/queries.rs"]
mod queries;
#[path = "observability/rules.rs"]
mod rules;

use gpulimit_support::Scratch;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the path of a file of the repository.
fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Returns the text of a file of the repository.
fn read(path: &str) -> String {
    fs::read_to_string(repository(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// A folder that is removed when the value is dropped.
struct Place(Scratch);

impl Place {
    fn new() -> Place {
        Place(Scratch::new())
    }

    /// Writes a file, and makes the folders above it.
    fn write(&self, path: &str, text: &str) -> PathBuf {
        let path = self.0.at(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(&path, text).expect("written");
        path
    }
}

/// Runs Prometheus' tool; returns whether it succeeded, and its output and errors. `None`, with a
/// message, where the tool is not installed.
fn promtool(arguments: &[&str], file: &Path) -> Option<(bool, String)> {
    let output = Command::new("promtool").args(arguments).arg(file).output();
    let Ok(output) = output else {
        eprintln!("skipped: there is no promtool (scripts/setup prometheus)");
        return None;
    };
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    Some((output.status.success(), said))
}
