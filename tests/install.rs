//! `gpulimit install` and `gpulimit uninstall` on another root file system; the test for this
//! machine's own is `tests/programs/tests/shim/install.rs`.

use gpulimit_support::{Scratch, clean, executable, is_root, text};
use serde_json::Value;
use std::fs::{self, File, Permissions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const PRELOAD: &str = "etc/ld.so.preload";
const LIBRARY: &str = "usr/local/lib/gpulimit/libgpulimit.so";
const OURS: &str = "/usr/local/lib/gpulimit/libgpulimit.so\n";

/// A root file system, and libraries to install in it.
struct Place(Scratch);

impl Place {
    /// Makes the file system; `None` if this process cannot make files of root.
    fn new() -> Option<Self> {
        if !is_root() {
            return None;
        }
        let place = Self(Scratch::new());
        fs::create_dir_all(place.at("etc")).expect("made");
        Some(place)
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.join("image").join(path)
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.at(path)).expect("readable")
    }

    fn gpulimit(&self, arguments: &[&str]) -> Output {
        gpulimit(&[arguments, &["--root", &self.image()]].concat())
    }

    fn image(&self) -> String {
        self.0.at("image").display().to_string()
    }

    fn install(&self, library: &Path) -> Output {
        self.gpulimit(&["install", "--library", library.to_str().expect("text")])
    }

    /// Returns the error of an installation that is refused and changes nothing.
    #[track_caller]
    fn refused(&self, library: &Path) -> String {
        let before = (self.at(PRELOAD).exists(), self.at(LIBRARY).exists());
        let output = self.install(library);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert_eq!(
            (self.at(PRELOAD).exists(), self.at(LIBRARY).exists()),
            before
        );
        let said = text(&output.stderr);
        assert_eq!(said.lines().count(), 1, "{said}");
        said
    }
}

fn gpulimit(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpulimit"));
    clean(command.args(arguments)).output().expect("started")
}

/// Returns a library that claims to be gpulimit's.
fn library(more: &str) -> PathBuf {
    let version = gpulimit_base::version::text();
    let source = format!("const char gpulimit_version_text[] = \"{version}\";\n{more}\n");
    compiled("libgpulimit.so", &source)
}

fn path(file: &Path) -> String {
    file.display().to_string()
}

fn compiled(name: &str, source: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    executable::compiled(folder, name, source, &["-shared", "-fPIC"])
}

#[track_caller]
fn done(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    text(&output.stdout)
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("there").mode() & 0o7777
}

#[test]
fn install_adds_the_first_preload_and_uninstall_removes_it() {
    let Some(place) = Place::new() else { return };
    let library = library("");
    let first = done(&place.gpulimit(&["install", "--dry-run", "--library", &path(&library)]));
    // `install` names the programs that do not bear a preload before it changes anything.
    let (unfit, change) = first.split_once("would be installed").expect("a change");
    assert!(unfit.contains("for 32 bits"), "{unfit}");
    assert!(change.contains("the library would be added"), "{change}");
    assert_eq!(
        done(&place.install(&library))
            .matches("for 32 bits")
            .count(),
        1
    );
    assert_eq!(place.read(PRELOAD), OURS);
    assert_eq!(mode(&place.at(PRELOAD)), 0o644);
    assert_eq!(mode(&place.at(LIBRARY)), 0o755);
    assert_eq!(mode(&place.at("run/gpulimit")), 0o755);
    let again = done(&place.install(&library));
    assert!(!again.contains("for 32 bits"), "{again}");
    assert!(
        again.contains("up to date") && again.contains("already names the library"),
        "{again}"
    );
    done(&place.gpulimit(&["uninstall"]));
    assert!(!place.at(PRELOAD).exists() && !place.at("usr/local/lib/gpulimit").exists());
    assert!(done(&place.gpulimit(&["uninstall"])).contains("does not name the library"));

    let others = "# jemalloc for all\n/usr/lib/libjemalloc.so.2 /usr/lib/other.so\n";
    fs::write(place.at(PRELOAD), others).expect("written");
    done(&place.install(&library));
    assert_eq!(place.read(PRELOAD), OURS.to_owned() + others);
    // Another library was put before it.
    fs::write(place.at(PRELOAD), format!("/usr/lib/wraps.so\n{OURS}")).expect("written");
    done(&place.install(&library));
    assert_eq!(place.read(PRELOAD), format!("{OURS}/usr/lib/wraps.so\n"));
    done(&place.gpulimit(&["uninstall"]));
    assert_eq!(place.read(PRELOAD), "/usr/lib/wraps.so\n");
    let left = fs::read_dir(place.at("etc")).expect("listed").count();
    assert_eq!(left, 1, "temporary files stay behind");
}

#[test]
fn an_upgrade_leaves_the_old_file_unchanged() {
    let Some(place) = Place::new() else { return };
    let old = library("");
    done(&place.install(&old));
    let mut running = File::open(place.at(LIBRARY)).expect("open");
    let new = library("int more;");
    done(&place.install(&new));
    let mut bytes = Vec::new();
    running.read_to_end(&mut bytes).expect("read");
    assert_eq!(
        bytes,
        fs::read(&old).expect("read"),
        "what programs have mapped"
    );
    assert_eq!(
        fs::read(place.at(LIBRARY)).expect("read"),
        fs::read(&new).expect("read")
    );
    assert_eq!(place.read(PRELOAD), OURS);
}

#[test]
fn a_packaged_library_is_preloaded_from_its_place() {
    let Some(place) = Place::new() else { return };
    let packaged = place.at("usr/lib/x86_64-linux-gnu/gpulimit/libgpulimit.so");
    fs::create_dir_all(packaged.parent().expect("a folder")).expect("made");
    fs::copy(library(""), &packaged).expect("copied");
    done(&place.install(&packaged));
    assert_eq!(
        place.read(PRELOAD),
        "/usr/lib/x86_64-linux-gnu/gpulimit/libgpulimit.so\n"
    );
    assert!(!place.at(LIBRARY).exists());
    done(&place.gpulimit(&["uninstall"]));
    assert!(packaged.exists() && !place.at(PRELOAD).exists());
}

#[test]
fn a_dry_run_changes_nothing() {
    let Some(place) = Place::new() else { return };
    let library = library("");
    let path = library.to_str().expect("text");
    let said = done(&place.gpulimit(&["install", "--dry-run", "--library", path]));
    assert_eq!(said.matches("would").count(), 3, "{said}");
    let json = ["install", "--dry-run", "--json", "--library", path];
    let json: Value = serde_json::from_str(&done(&place.gpulimit(&json))).expect("JSON");
    let steps = json["done"].as_array().expect("a list");
    let names: Vec<&str> = steps
        .iter()
        .filter_map(|step| step["name"].as_str())
        .collect();
    assert_eq!(
        names,
        [
            &*format!("/{LIBRARY}"),
            "/run/gpulimit",
            "/etc/ld.so.preload"
        ]
    );
    assert!(!place.at(PRELOAD).exists() && !place.at("usr").exists() && !place.at("run").exists());
    done(&place.install(&library));
    let said = done(&place.gpulimit(&["uninstall", "--dry-run"]));
    assert_eq!(said.matches("would").count(), 2, "{said}");
    assert!(place.at(PRELOAD).exists() && place.at(LIBRARY).exists());
}

#[test]
fn only_root_is_told_what_changes() {
    let Some(_) = Place::new() else { return };
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpulimit"));
    let library = library("");
    command
        .args(["install", "--library"])
        .arg(library)
        .uid(40_001);
    let output = clean(&mut command).output().expect("started");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    assert!(text(&output.stderr).contains("run the command as root"));
}

#[test]
fn all_users_can_read_the_library_whatever_the_umask() {
    let Some(place) = Place::new() else { return };
    let library = library("");
    let mut command = Command::new("sh");
    command
        .args(["-c", "umask 077; exec \"$@\"", "sh"])
        .arg(env!("CARGO_BIN_EXE_gpulimit"))
        .args(["install", "--root", &place.image(), "--library"])
        .arg(&library);
    done(&clean(&mut command).output().expect("started"));
    for (path, mode) in [
        ("usr", 0o755),
        ("usr/local", 0o755),
        ("usr/local/lib/gpulimit", 0o755),
        (LIBRARY, 0o755),
        (PRELOAD, 0o644),
        ("run/gpulimit", 0o755),
    ] {
        let about = fs::metadata(place.at(path)).expect("installed");
        assert_eq!(about.permissions().mode() & 0o7777, mode, "{path}");
    }
}

#[test]
fn a_library_that_breaks_programs_is_refused() {
    let Some(place) = Place::new() else { return };
    let text = place.0.write("libgpulimit.so", "no library");
    assert!(place.refused(&text).contains("cannot preload"));
    for more in [
        "void missing(void); void use(void) { missing(); }",
        "#include <unistd.h>\n__attribute__((constructor)) static void f(void) { \
            if (write(2, \"x\\n\", 2)) {} }",
        "#include <unistd.h>\n__attribute__((constructor)) static void f(void) { _exit(3); }",
        "__attribute__((constructor)) static void f(void) { __builtin_trap(); }",
    ] {
        let said = place.refused(&library(more));
        assert!(
            said.contains("cannot be used here") && said.contains("/true"),
            "{said}"
        );
    }
    let other = compiled("libother.so", "");
    assert!(place.refused(&other).contains("not libgpulimit.so"));
    assert!(
        place
            .refused(Path::new("/nowhere.so"))
            .contains("--library")
    );
}

#[test]
fn places_that_others_could_change_are_refused() {
    let Some(place) = Place::new() else { return };
    let library = library("");
    let folder = place.at("usr/local/lib");
    fs::create_dir_all(&folder).expect("made");
    fs::set_permissions(&folder, Permissions::from_mode(0o777)).expect("set");
    assert!(
        place
            .refused(&library)
            .contains("may be written by others (mode 0777)")
    );
    fs::set_permissions(&folder, Permissions::from_mode(0o755)).expect("set");
    chown(&folder, Some(40_001), None).expect("given");
    assert!(place.refused(&library).contains("belongs to user 40001"));
    chown(&folder, Some(0), None).expect("taken");
    // The installed library, if there is one, must be safe as well.
    done(&place.install(&library));
    fs::remove_file(place.at(PRELOAD)).expect("removed");
    chown(place.at(LIBRARY), Some(40_001), None).expect("given");
    assert!(place.refused(&library).contains("belongs to user 40001"));
    chown(place.at(LIBRARY), Some(0), None).expect("taken");
    symlink("/dev/null", place.at(PRELOAD)).expect("linked");
    let said = place.install(&library);
    assert_eq!(said.status.code(), Some(1), "{said:?}");
    assert!(
        fs::symlink_metadata(place.at(PRELOAD))
            .expect("there")
            .is_symlink()
    );
}

#[test]
fn relative_paths_in_options_are_refused() {
    for arguments in [
        ["install", "--root", "here"],
        ["install", "--prefix", "here"],
        ["uninstall", "--root", "./image"],
    ] {
        let output = gpulimit(&arguments);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(text(&output.stderr).contains("absolute path"));
    }
}
