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

use gpulimit_support::{have, text};
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

/// Runs Prometheus' tool; returns whether it succeeded, and its output and errors. `None` where the
/// tool is not installed.
fn promtool(arguments: &[&str], file: &Path) -> Option<(bool, String)> {
    if !have("promtool") {
        return None;
    }
    let output = Command::new("promtool").args(arguments).arg(file).output();
    let output = output.expect("started");
    let said = text(&output.stdout) + &text(&output.stderr);
    Some((output.status.success(), said))
}
