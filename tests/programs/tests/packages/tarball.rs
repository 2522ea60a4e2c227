//! The archive: install.sh as root and as a user, repeated, over another version, and uninstalled.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use gpulimit_programs::executable;
use gpulimit_programs::world::{World, finish, text};
use gpulimit_support::is_root;

use super::built::{self, NEW, OLD};
use super::life::{self, CAP, Installation};
use super::system::System;

fn world() -> World {
    World::with(CAP, &[("GPULIMIT_SIM_KILL_LAG_MS", "0")])
}

/// Unpacks an archive into a folder of the world.
fn unpack(world: &World, archive: &Path) -> PathBuf {
    let name = archive
        .file_name()
        .and_then(|name| name.to_str())
        .expect("a name");
    let mut command = Command::new("tar");
    command
        .arg("-xzf")
        .arg(archive)
        .arg("-C")
        .arg(world.file(""));
    assert!(finish(command).status.success());
    world.file(name.strip_suffix(".tar.gz").expect("an archive"))
}

fn run(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(folder.join("install.sh"));
    command.args(arguments);
    finish(command)
}

#[track_caller]
fn done(folder: &Path, arguments: &[&str]) -> String {
    let output = run(folder, arguments);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(text(&output.stderr), "");
    text(&output.stdout)
}

#[track_caller]
fn refused(folder: &Path, arguments: &[&str]) -> String {
    let output = run(folder, arguments);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let error = text(&output.stderr);
    assert_eq!(error.lines().count(), 1, "{error}");
    error
}

/// Returns everything below a folder, with modes.
fn tree(folder: &Path) -> Vec<String> {
    let mut command = Command::new("find");
    command.arg(folder).args(["-printf", "%P %m\n"]);
    let mut all: Vec<_> = text(&finish(command).stdout)
        .lines()
        .map(str::to_owned)
        .collect();
    all.sort();
    all
}

#[test]
fn programs_survive_an_upgrade_and_the_removal() {
    let Some([old, new]) = built::tar() else {
        return;
    };
    let world = world();
    let [old, new] = [old, new].map(|archive| unpack(&world, &archive));
    let prefix = world.file("prefix");
    let to = ["--prefix", prefix.to_str().expect("text")];
    let said = done(&old, &to);
    assert!(
        said.contains(&format!("installed gpulimit {OLD} in ")) && said.contains("  export PATH="),
        "{said}"
    );
    let installation = Installation {
        prefix: &prefix,
        enter: &|command| command,
    };
    let upgrade = || {
        let said = done(&new, &to);
        assert!(
            said.contains(&format!("gpulimit {NEW} "))
                && said.contains(&format!("in place of {OLD}")),
            "{said}"
        );
        // The same installation is repeated.
        assert!(done(&new, &to).contains("anew"));
    };
    let remove = || {
        // The installed copy of the script knows its prefix.
        let said = done(&prefix.join("lib/gpulimit"), &["--uninstall"]);
        assert!(
            said.contains(&format!("removed gpulimit {NEW} from ")),
            "{said}"
        );
    };
    life::from_start_to_end(&world, &installation, &upgrade, &remove);
    assert!(!prefix.exists());
}

#[test]
fn the_system_wide_entry_is_removed_with_the_installation() {
    let Some([old, new]) = built::tar() else {
        return;
    };
    let world = world();
    let Some(system) = System::new(&world) else {
        return;
    };
    let [old, new] = [old, new].map(|archive| unpack(&world, &archive));
    let install = |folder: &Path| system.done(&format!("{}/install.sh", folder.display()));
    install(&old);
    let upgrade = || {
        install(&new);
    };
    let remove = || system.done("/usr/local/lib/gpulimit/install.sh --uninstall");
    life::system_wide(&world, &system, "/usr/local", &upgrade, &remove);
    // `gpulimit uninstall` removes only the entry: the file belongs to the installation.
    install(&new);
    system.done("gpulimit install; gpulimit uninstall; gpulimit run --max 1G -- true");
}

#[test]
fn uninstalling_restores_the_earlier_files() {
    let Some([old, new]) = built::tar() else {
        return;
    };
    let world = world();
    let [old, new] = [old, new].map(|archive| unpack(&world, &archive));
    let prefix = world.file("prefix");
    let to = ["--prefix", prefix.to_str().expect("text")];
    fs::create_dir_all(prefix.join("share/man/man1")).expect("made");
    fs::write(prefix.join("share/man/man1/other.1"), "").expect("written");
    let before = tree(&prefix);
    // Later versions do not have this file.
    fs::write(old.join("share/gpulimit/config/gone"), "old\n").expect("written");
    let mut command = Command::new("sh");
    command
        .args(["-c", "sha256sum share/gpulimit/config/gone >> SHA256SUMS"])
        .current_dir(&old);
    assert!(finish(command).status.success());
    done(&old, &to);
    let gone = prefix.join("share/gpulimit/config/gone");
    assert!(gone.exists());
    let library = prefix.join("lib/gpulimit/libgpulimit.so");
    let inode = fs::metadata(&library).expect("there").ino();
    done(&new, &to);
    assert!(!gone.exists());
    assert_ne!(
        fs::metadata(&library).expect("there").ino(),
        inode,
        "replaced, not written into"
    );
    assert_eq!(
        fs::metadata(&library).expect("there").permissions().mode() & 0o7777,
        0o755
    );
    let config =
        fs::read_to_string(prefix.join("share/gpulimit/config/gpulimit.env")).expect("there");
    assert!(
        config.contains(&format!("LD_PRELOAD={}", library.display())),
        "{config}"
    );
    done(&new, &["--uninstall", "--prefix", to[1]]);
    assert_eq!(tree(&prefix), before);
    assert!(refused(&new, &["--uninstall", "--prefix", to[1]]).contains("nothing of install.sh"));
}

#[test]
fn users_can_install_without_root() {
    let Some([_, new]) = built::tar() else { return };
    if !is_root() {
        return;
    }
    let world = world();
    let folder = unpack(&world, &new);
    let home = world.file("home");
    fs::create_dir(&home).expect("made");
    give(&home, 40_001);
    let user = |program: &Path, arguments: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "40001", "--regid", "40001", "--clear-groups"]);
        command
            .arg(program)
            .args(arguments)
            .env("HOME", &home)
            .env("GPULIMIT_ROOT", home.join("groups"))
            .current_dir("/");
        finish(command)
    };
    let output = user(&folder.join("install.sh"), &[]);
    assert!(output.status.success(), "{output:?}");
    let local = home.join(".local");
    let output = user(
        &local.join("bin/gpulimit"),
        &["run", "--max", "1G", "--", "sh", "-c", "echo $LD_PRELOAD"],
    );
    let library = local.join("lib/gpulimit/libgpulimit.so");
    assert_eq!(
        text(&output.stdout),
        format!("{}\n", library.display()),
        "{output:?}"
    );
    // The user may not write there, and the attempt leaves no files.
    let output = user(
        &folder.join("install.sh"),
        &["--prefix", world.file("other").to_str().expect("text")],
    );
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stderr).contains("cannot make"), "{output:?}");
    let output = user(&local.join("lib/gpulimit/install.sh"), &["--uninstall"]);
    assert!(output.status.success(), "{output:?}");
    let _ = fs::remove_dir_all(home.join("groups"));
    assert_eq!(tree(&home).len(), 1, "{:?}", tree(&home));
}

#[test]
fn damaged_archives_and_foreign_files_are_refused() {
    let Some([_, new]) = built::tar() else { return };
    let world = world();
    let folder = unpack(&world, &new);
    let prefix = world.file("prefix");
    let to = ["--prefix", prefix.to_str().expect("text")];
    let script = folder.join("install.sh");
    let text_of = fs::read_to_string(&script).expect("there");
    let other = text_of.replace(&format!("arch={}", built::ARCH), "arch=riscv64");
    executable::script(&script, &other);
    assert!(refused(&folder, &to).contains("this is for Linux on riscv64"));
    executable::script(&script, &text_of);
    // The file was not put there by install.sh.
    fs::create_dir_all(prefix.join("bin")).expect("made");
    fs::write(prefix.join("bin/gpulimit"), "mine").expect("written");
    assert!(refused(&folder, &to).contains("was not put there by install.sh"));
    fs::remove_file(prefix.join("bin/gpulimit")).expect("removed");
    // The library does not load.
    let library = folder.join("lib/gpulimit/libgpulimit.so");
    let good = fs::read(&library).expect("read");
    fs::write(&library, "no library").expect("written");
    assert!(refused(&folder, &to).contains("not those of the archive"));
    let mut sums = Command::new("sh");
    sums.args([
        "-c",
        "find bin lib share -type f | xargs sha256sum > SHA256SUMS",
    ])
    .current_dir(&folder);
    assert!(finish(sums).status.success());
    let error = refused(&folder, &to);
    assert!(
        error.contains("programs do not start with the library here"),
        "{error}"
    );
    fs::write(&library, good).expect("written");
    executable::script(&folder.join("bin/gpulimit"), "#!/nowhere\n");
    let mut sums = Command::new("sh");
    sums.args([
        "-c",
        "find bin lib share -type f | xargs sha256sum > SHA256SUMS",
    ])
    .current_dir(&folder);
    assert!(finish(sums).status.success());
    let error = refused(&folder, &to);
    assert!(error.contains("does not start on this system"), "{error}");
    fs::remove_file(folder.join("SHA256SUMS")).expect("removed");
    assert!(refused(&folder, &to).contains("SHA256SUMS is missing"));
    assert!(refused(&folder, &["--prefix", "/a b"]).contains("a space or a colon"));
    assert_eq!(tree(&prefix), [" 755", "bin 755"]);
    for wrong in [&["--what"][..], &["--prefix"]] {
        let output = run(&folder, wrong);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(text(&output.stderr).contains("./install.sh [--prefix DIR] [--uninstall]"));
    }
    assert!(done(&folder, &["--help"]).contains("--uninstall"));
}

/// Changes the owner of a file or a folder.
#[track_caller]
fn give(path: &Path, user: u32) {
    std::os::unix::fs::lchown(path, Some(user), Some(user)).expect("given");
}

#[test]
fn unsafe_prefixes_are_refused() {
    let Some([_, new]) = built::tar() else { return };
    let world = world();
    let folder = unpack(&world, &new);
    for prefix in ["/", "//", "/.", "/./"] {
        assert!(refused(&folder, &["--prefix", prefix]).contains("/ itself"));
    }
    let prefix = world.file("");
    for name in [
        "a&b", "a|b", "a$b", "a`b", "a\"b", "a'b", "a*", "a%b", "a;b", "a\\b", "a]b",
    ] {
        let to = prefix.join(name);
        let error = refused(&folder, &["--prefix", to.to_str().expect("text")]);
        assert!(error.contains("would misread"), "{error}");
        assert!(!to.exists(), "{name}");
    }
    let to = prefix.join("x/../y");
    assert!(refused(&folder, &["--prefix", to.to_str().expect("text")]).contains(".. in it"));
    // The same prefix may be written in another way.
    let to = format!("{}//./prefix/", prefix.display());
    let said = done(&folder, &["--prefix", &to]);
    let clean = world.file("prefix");
    assert!(
        said.contains(&format!(" in {}\n", clean.display())),
        "{said}"
    );
    done(&clean.join("lib/gpulimit"), &["--uninstall"]);
    assert!(!clean.exists());
}

#[test]
fn root_refuses_a_prefix_that_a_user_could_redirect() {
    let Some([_, new]) = built::tar() else { return };
    if !is_root() {
        return;
    }
    let world = world();
    let folder = unpack(&world, &new);
    let prefix = world.file("prefix");
    let to = ["--prefix", prefix.to_str().expect("text")];
    let elsewhere = world.file("elsewhere");
    fs::create_dir(&elsewhere).expect("made");
    // Links below the prefix are refused, whoever made them.
    for name in ["bin", "lib", "lib/gpulimit", "share", "share/gpulimit"] {
        let link = prefix.join(name);
        fs::create_dir_all(link.parent().expect("above")).expect("made");
        std::os::unix::fs::symlink(&elsewhere, &link).expect("linked");
        assert!(
            refused(&folder, &to).contains("is a symbolic link"),
            "{name}"
        );
        assert_eq!(tree(&elsewhere).len(), 1, "{name}");
        fs::remove_dir_all(&prefix).expect("removed");
    }
    // Another user owns the prefix, a folder below it, or one above it.
    for (place, other) in [
        ("prefix", "prefix"),
        ("prefix", "prefix/lib"),
        ("above/prefix", "above"),
    ] {
        let prefix = world.file(place);
        let other = world.file(other);
        fs::create_dir_all(&other).expect("made");
        fs::create_dir_all(&prefix).expect("made");
        give(&other, 40_001);
        let to = ["--prefix", prefix.to_str().expect("text")];
        assert!(refused(&folder, &to).contains("belongs to user 40001"));
        fs::set_permissions(&other, fs::Permissions::from_mode(0o777)).expect("set");
        give(&other, 0);
        assert!(refused(&folder, &to).contains("may be written by others"));
        fs::remove_dir_all(&other).expect("removed");
    }
    // A folder of root's is reached by links of root's in a folder of another user, who could
    // replace it, and by a link of that user.
    let hers = world.file("hers");
    fs::create_dir_all(hers.join("roots")).expect("made");
    std::os::unix::fs::symlink(world.file("elsewhere"), hers.join("link")).expect("linked");
    std::os::unix::fs::symlink("hers/roots", world.file("relative")).expect("linked");
    std::os::unix::fs::symlink(hers.join("link"), world.file("absolute")).expect("linked");
    give(&hers, 40_001);
    for name in ["relative", "absolute"] {
        let to = world.file(name).join("prefix");
        let to = ["--prefix", to.to_str().expect("text")];
        let said = refused(&folder, &to);
        assert!(said.contains("belongs to user 40001"), "{name}: {said}");
    }
    assert!(!hers.join("roots/prefix").exists() && !elsewhere.join("prefix").exists());
}

#[test]
fn a_record_with_paths_outside_the_prefix_is_refused() {
    let Some([_, new]) = built::tar() else { return };
    let world = world();
    let folder = unpack(&world, &new);
    let prefix = world.file("prefix");
    let to = prefix.to_str().expect("text");
    let important = world.file("important");
    fs::write(&important, "").expect("written");
    let other = world.file("other");
    fs::create_dir(&other).expect("made");
    done(&folder, &["--prefix", to]);
    let record = prefix.join("lib/gpulimit/installed");
    let good = fs::read_to_string(&record).expect("read");
    for line in [
        "file ../important".to_owned(),
        "file lib/../../important".to_owned(),
        "file ../prefix/../important".to_owned(),
        format!("made {}", other.display()),
        format!("made {}/../other", prefix.display()),
    ] {
        fs::write(&record, format!("{good}{line}\n")).expect("written");
        for arguments in [&["--uninstall", "--prefix", to][..], &["--prefix", to]] {
            if line.starts_with("made") && arguments.len() == 2 {
                continue;
            }
            let error = refused(&folder, arguments);
            assert!(error.contains("is not below"), "{line}: {error}");
            assert!(important.exists() && other.exists(), "{line}");
            assert!(prefix.join("bin/gpulimit").exists(), "{line}");
        }
    }
    // A record of another user's is not trusted, and no script in such a prefix is run.
    fs::write(&record, &good).expect("written");
    if is_root() {
        for hers in [&record, &prefix] {
            give(hers, 40_001);
            let error = refused(&folder, &["--uninstall", "--prefix", to]);
            assert!(error.contains("belongs to user 40001"), "{error}");
            give(hers, 0);
        }
    }
    done(&folder, &["--uninstall", "--prefix", to]);
    assert!(!prefix.exists());
}
