//! The contents of packages, and that the same sources give the same bytes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use gpulimit_programs::executable;
use gpulimit_programs::world::{self, finish, text};
use gpulimit_support::{Scratch, have, wait_until};

use super::built::{self, ARCH, DEBIAN_ARCH, NEW, OLD};

/// Returns the names of the files in a package, without folders; in archives, relative to the
/// version's own folder.
fn names(program: &str, arguments: &[&str], package: &Path) -> Vec<String> {
    let mut command = Command::new(program);
    command.args(arguments).arg(package);
    let output = finish(command);
    assert!(output.status.success(), "{output:?}");
    let name = |line: &str| line.trim_start_matches(['.', '/']).to_owned();
    text(&output.stdout).lines().map(name).collect()
}

#[track_caller]
fn has(names: &[String], expected: &[&str]) {
    for expected in expected {
        assert!(
            names.iter().any(|name| name.ends_with(expected)),
            "{expected}: {names:#?}"
        );
    }
}

/// Files that every package has.
const ALL: [&str; 7] = [
    "bin/gpulimit",
    "lib/gpulimit/libgpulimit.so",
    "include/gpulimit.h",
    "share/man/man1/gpulimit-run.1.gz",
    "share/bash-completion/completions/gpulimit",
    "share/fish/vendor_completions.d/gpulimit.fish",
    "share/doc/gpulimit/README.md",
];
const SYSTEM: [&str; 8] = [
    "usr/lib/systemd/system/gpulimit-apply.service",
    "usr/lib/systemd/system/gpulimit-report.service",
    "usr/lib/systemd/system/gpulimit-report.timer",
    "usr/lib/systemd/system/gpulimit-serve.service",
    "usr/lib/systemd/system/gpulimit-serve.socket",
    "usr/lib/tmpfiles.d/gpulimit.conf",
    "usr/share/gpulimit/config/policy/lab-server.toml",
    "usr/lib/systemd/system/run-gpulimit.mount",
];

/// Asserts that the links of all pages in a folder lead to files in it.
#[track_caller]
fn links_lead_to_files(folder: &Path) {
    let mut command = Command::new("find");
    command.arg(folder).args(["-name", "*.md"]);
    let pages = text(&finish(command).stdout);
    assert!(pages.contains("/docs/README.md"), "{pages}");
    for page in pages.lines().map(Path::new) {
        let content = fs::read_to_string(page).expect("a page");
        let starts = ["](", " src=\"", "\nsrc=\"", " srcset=\""];
        let targets = starts.iter().flat_map(|start| content.split(start).skip(1));
        let targets = targets.filter_map(|rest| rest.split([')', '#', '"']).next());
        for target in targets.filter(|it| !it.is_empty() && !it.starts_with("http")) {
            let there = page.parent().expect("a folder").join(target);
            assert!(there.exists(), "{}: {target}", page.display());
        }
    }
}

/// Extracts a package into a folder of its own with a shell command, which finds the package as
/// `$0`.
fn extracted(script: &str, package: &Path) -> Scratch {
    let folder = Scratch::new();
    let mut command = Command::new("sh");
    command
        .args(["-ec", script])
        .arg(package)
        .current_dir(&folder);
    let output = finish(command);
    assert!(output.status.success(), "{output:?}");
    folder
}

fn named(path: &Path) -> &str {
    path.file_name()
        .and_then(|name| name.to_str())
        .expect("a name")
}

#[test]
fn the_archive_has_the_expected_files() {
    let Some([old, new]) = built::tar() else {
        return;
    };
    assert_eq!(named(&old), format!("gpulimit-{OLD}-linux-{ARCH}.tar.gz"));
    assert_eq!(named(&new), format!("gpulimit-{NEW}-linux-{ARCH}.tar.gz"));
    let names = names("tar", &["-tzf"], &new);
    assert!(
        names
            .iter()
            .all(|name| name.starts_with(&format!("gpulimit-{NEW}-linux-{ARCH}/")))
    );
    has(&names, &ALL);
    has(
        &names,
        &[
            "/install.sh",
            "/LICENSE-APACHE",
            "/LICENSE-MIT",
            "/CHANGELOG.md",
            "/SHA256SUMS",
            "share/zsh/site-functions/_gpulimit",
            "config/slurm/prolog",
        ],
    );
    let folder = extracted("tar -xzf \"$0\"", &new);
    links_lead_to_files(&folder);
    let page = folder.join(format!(
        "gpulimit-{NEW}-linux-{ARCH}/share/doc/gpulimit/docs/slurm.md"
    ));
    let page = fs::read_to_string(page).expect("a page");
    assert!(page.contains("](../../../gpulimit/config/slurm)"), "{page}");
}

#[test]
fn debians_package_has_the_expected_files() {
    let Some([old, new]) = built::deb() else {
        return;
    };
    assert_eq!(named(&old), format!("gpulimit_{OLD}-1_{DEBIAN_ARCH}.deb"));
    let mut command = Command::new("dpkg-deb");
    command
        .arg("--field")
        .arg(&new)
        .args(["Version", "Architecture", "Depends"]);
    let fields =
        format!("Version: {NEW}-1\nArchitecture: {DEBIAN_ARCH}\nDepends: libc6 (>= 2.17)\n");
    assert_eq!(text(&finish(command).stdout), fields);
    let folder = extracted("dpkg-deb --extract \"$0\" .", &new);
    links_lead_to_files(&folder);
    let names = names(
        "sh",
        &["-c", "dpkg-deb --fsys-tarfile \"$0\" | tar -t"],
        &new,
    );
    has(&names, &ALL);
    has(&names, &SYSTEM);
    has(
        &names,
        &[
            "share/doc/gpulimit/changelog.gz",
            "share/doc/gpulimit/changelog.Debian.gz",
            "share/zsh/vendor-completions/_gpulimit",
        ],
    );
    let copyright =
        fs::read_to_string(folder.join("usr/share/doc/gpulimit/copyright")).expect("there");
    assert!(
        copyright.contains("Apache License 2.0 or the MIT (Expat) licence"),
        "{copyright}"
    );
    assert!(
        copyright.contains("Permission is hereby granted"),
        "{copyright}"
    );
    // Units, and files that users copy, name this package's paths.
    for (unit, start) in [
        (SYSTEM[0], "/usr/bin/gpulimit apply"),
        (
            SYSTEM[1],
            "/usr/bin/gpulimit report --save /var/log/gpulimit",
        ),
    ] {
        let said = fs::read_to_string(folder.join(unit)).expect("there");
        assert!(said.contains(&format!("ExecStart={start}\n")), "{said}");
        let path = format!("# Installed as /{unit}");
        assert!(said.starts_with(&path), "{said}");
    }
    let logs = fs::metadata(folder.join("var/log/gpulimit")).expect("there");
    assert_eq!(logs.permissions().mode() & 0o7777, 0o750);
    let mut command = Command::new("grep");
    command
        .args([
            "-r",
            "-e",
            "/usr/local/lib/gpulimit",
            "-e",
            "/usr/local/share",
        ])
        .arg(folder.join("usr/share/gpulimit"));
    assert_eq!(text(&finish(command).stdout), "");
    let rules = folder.join("usr/share/gpulimit/config/prometheus/rules.yml");
    let rules = fs::read_to_string(rules).expect("there");
    let page = rules.split("file:///").nth(1).expect("a runbook");
    let page = page.split('#').next().expect("a path");
    assert!(folder.join(page).exists(), "{page}");
}

#[test]
fn fedoras_package_has_the_expected_files() {
    let Some([old, new]) = built::rpm() else {
        return;
    };
    assert_eq!(named(&old), format!("gpulimit-{OLD}-1.{ARCH}.rpm"));
    let query = "%{VERSION}-%{RELEASE} %{ARCH} %{LICENSE}";
    assert_eq!(
        names("rpm", &["-qp", "--qf", query], &new),
        [format!("{NEW}-1 {ARCH} Apache-2.0 OR MIT")]
    );
    let names = names("rpm", &["-qpl"], &new);
    has(&names, &ALL);
    has(&names, &SYSTEM);
    has(
        &names,
        &[
            "usr/share/licenses/gpulimit/LICENSE-APACHE",
            "usr/share/licenses/gpulimit/LICENSE-MIT",
            "share/doc/gpulimit/CHANGELOG.md",
        ],
    );
    let query = "[%{FILENAMES} %{FILEMODES:perms} %{FILEUSERNAME}\n]";
    let mut command = Command::new("rpm");
    command.args(["-qp", "--qf", query]).arg(&new);
    let files = text(&finish(command).stdout);
    assert!(
        files.contains("/var/log/gpulimit drwxr-x--- root\n"),
        "{files}"
    );
    let script = "rpm2archive - <\"$0\" | tar -xz";
    links_lead_to_files(&extracted(script, &new));
}

#[test]
fn the_wheel_has_the_expected_files() {
    let Some([old, new]) = built::wheel() else {
        return;
    };
    let tags = format!("py3-none-manylinux2014_{ARCH}.manylinux_2_17_{ARCH}.whl");
    assert_eq!(named(&old), format!("gpulimit_cap-{OLD}-{tags}"));
    let names = names(
        "python3",
        &[
            "-c",
            "import sys, zipfile; print(*zipfile.ZipFile(sys.argv[1]).namelist(), sep='\\n')",
        ],
        &new,
    );
    let info = format!("gpulimit_cap-{NEW}.dist-info");
    has(&names, &ALL[1..]);
    has(
        &names,
        &[
            "data/scripts/gpulimit",
            "gpulimit/__init__.py",
            "gpulimit/__main__.py",
            "gpulimit/torch.py",
            "gpulimit/py.typed",
            "share/doc/gpulimit/CHANGELOG.md",
            &format!("{info}/licenses/LICENSE-APACHE"),
            &format!("{info}/licenses/LICENSE-MIT"),
        ],
    );
    let script = "python3 -m zipfile -e \"$0\" .";
    links_lead_to_files(&extracted(script, &new));
}

/// Small files replace the binaries, since the test compares only how they are packed.
#[test]
fn the_same_sources_give_the_same_bytes() {
    let from = Scratch::new();
    let program = from.at("gpulimit");
    let script = format!("#!/bin/sh\nexec {} \"$@\"\n", world::controller().display());
    executable::script(&program, &script);
    let library = world::library("wraps_malloc", &[]);
    fs::copy(library, from.at("libgpulimit.so")).expect("copied");
    let wheel = format!("manylinux2014_{ARCH}.manylinux_2_17_{ARCH}.whl");
    let all = [
        (
            "tar",
            "tar",
            format!("gpulimit-1.2.3-rc.4-linux-{ARCH}.tar.gz"),
        ),
        (
            "rpm",
            "rpmbuild",
            format!("gpulimit-1.2.3~rc.4-1.{ARCH}.rpm"),
        ),
        (
            "deb",
            "dpkg-deb",
            format!("gpulimit_1.2.3~rc.4-1_{DEBIAN_ARCH}.deb"),
        ),
        (
            "wheel",
            "python3",
            format!("gpulimit_cap-1.2.3rc4-py3-none-{wheel}"),
        ),
    ];
    let all: Vec<_> = all.iter().filter(|(_, tool, _)| have(tool)).collect();
    let sums = || {
        let out = Scratch::new();
        let [from, to] = [&from, &out].map(|path| path.to_str().expect("text"));
        let mut arguments = vec!["--version", "1.2.3-rc.4", "--from", from, "--out", to];
        arguments.extend(all.iter().map(|(format, ..)| format));
        built::package(&arguments);
        fs::read_to_string(out.at("SHA256SUMS")).expect("there")
    };
    let first = sums();
    let names: Vec<_> = first.split_whitespace().skip(1).step_by(2).collect();
    let expected: Vec<_> = all.iter().map(|(.., name)| name).collect();
    assert_eq!(names, expected);
    // The second build runs in another second, in case a package stores the time.
    let time = || SystemTime::now().duration_since(UNIX_EPOCH);
    let second = || time().expect("after 1970").as_secs();
    let before = second();
    wait_until("the next second", || second() != before);
    assert_eq!(sums(), first);
}

#[test]
fn wrong_options_are_refused() {
    for (arguments, error) in [
        (&["zip"][..], "unknown: zip"),
        (&["--arch", "sparc"], "no packages for sparc"),
        (&["--version", "1.0"], "version '1.0'"),
        (&["--out"], "--out takes a value"),
        (&["--from", "/nowhere"], "/nowhere"),
    ] {
        let mut command = Command::new(world::repository().join("scripts/package"));
        command.args(arguments);
        let output = finish(command);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(text(&output.stderr).contains(error), "{output:?}");
    }
}
