//! Libraries that a user names, or leaves where root looks for one.

use crate::{ALICE, Ground, run};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles a library that claims to be gpulimit's, and that makes a file when it is loaded.
pub fn library(ground: &Ground, path: &str) -> PathBuf {
    let source = format!(
        "#include <fcntl.h>\n\
         const char gpulimit_version_text[] = \"{}\";\n\
         const char *gpulimit_hooks(void) {{ return \"\"; }}\n\
         __attribute__((constructor)) static void f(void) {{ open(\"{}\", O_CREAT \
         | O_WRONLY, 0600); }}\n",
        gpulimit_base::version::text(),
        proof(ground).display()
    );
    let source = ground.write("library.c", source, 0, 0o644);
    let path = ground.at(path);
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-Wl,-soname,libgpulimit.so", "-o"])
        .args([&path, &source])
        .status();
    assert!(built.expect("a C compiler").success());
    path
}

fn proof(ground: &Ground) -> PathBuf {
    ground.at("proof")
}

/// Runs a command with a library of Alice's, named in every way in which she could make root use
/// it.
#[track_caller]
fn assert_refused(ground: &Ground, arguments: &[&str], library: &Path) {
    let mut command = ground.gpulimit(arguments);
    let (status, said) = run(command.env("GPULIMIT_LIBRARY", library));
    assert!(!proof(ground).exists(), "{arguments:?} loaded it: {said}");
    assert_ne!(status, Some(0), "{arguments:?}: {said}");
    assert!(
        said.contains("belongs to user 40001") || said.contains("may be written by others"),
        "{arguments:?}: {said}"
    );
}

#[test]
fn root_opens_no_library_that_others_can_change() {
    let Some(ground) = Ground::new() else { return };
    let image = ground.make("image", 0, 0o755);
    let image = image.to_str().expect("text");
    ground.make("image/etc", 0, 0o755);
    ground.make("open", 0, 0o777);
    let hers = library(&ground, "hers/libgpulimit.so");
    std::os::unix::fs::chown(&hers, Some(ALICE), None).expect("given");
    let in_open = library(&ground, "open/libgpulimit.so");
    std::os::unix::fs::symlink(&hers, ground.at("libgpulimit.so")).expect("linked");
    let link = ground.at("libgpulimit.so");
    for library in [&hers, &in_open, &link] {
        for arguments in [
            &["doctor"][..],
            &["run", "--max", "1G", "--", "true"],
            &["cdi", "generate", "--output", "-"],
            &["install", "--dry-run", "--root", image],
        ] {
            assert_refused(&ground, arguments, library);
        }
        let path = library.to_str().expect("text");
        assert_refused(
            &ground,
            &["install", "--root", image, "--library", path],
            Path::new("/nowhere"),
        );
    }
}

#[test]
fn the_librarys_version_is_read_without_running_it() {
    let Some(ground) = Ground::new() else { return };
    let own = library(&ground, "libgpulimit.so");
    let mut command = ground.gpulimit(&["cdi", "generate", "--output", "-"]);
    let (status, said) = run(command.env("GPULIMIT_LIBRARY", &own));
    assert_eq!(status, Some(0), "{said}");
    assert!(!proof(&ground).exists(), "its constructor ran");
}

#[test]
fn install_follows_no_link_out_of_an_image() {
    let Some(ground) = Ground::new() else { return };
    let own = library(&ground, "libgpulimit.so");
    let own = own.to_str().expect("text");
    // This directory stands for one of the host, to which a link leads.
    let host = ground.make("host", 0, 0o755);
    let files = || std::fs::read_dir(&host).expect("listed").count();
    // The library of the host, as each of the links would lead to it.
    let hosts = ["", "lib", "local/lib"].map(|folder| host.join(folder).join("gpulimit"));
    for folder in &hosts {
        std::fs::create_dir_all(folder).expect("made");
        std::fs::copy(own, folder.join("libgpulimit.so")).expect("copied");
    }
    let before = files();
    let image = ground.make("image", 0, 0o755);
    for name in ["etc", "run", "usr", "usr/local", "usr/local/lib"] {
        let path = image.join(name);
        if let Some(above) = path.parent() {
            std::fs::create_dir_all(above).expect("made");
        }
        std::os::unix::fs::symlink(&host, &path).expect("linked");
        for verb in ["install", "uninstall"] {
            let mut command = ground.gpulimit(&[verb, "--root"]);
            command.arg(&image);
            if verb == "install" {
                command.args(["--library", own]);
            } else {
                std::fs::write(host.join("ld.so.preload"), format!("{own}\n")).expect("written");
            }
            let (status, said) = run(&mut command);
            if verb == "install" || name == "etc" {
                assert!(
                    status == Some(1) && said.contains("is a symbolic link"),
                    "{said}"
                );
            }
        }
        assert_eq!(files(), before + 1, "{name}");
        for folder in &hosts {
            assert!(folder.join("libgpulimit.so").exists(), "{name}");
        }
        let text = std::fs::read_to_string(host.join("ld.so.preload")).expect("read");
        assert_eq!(text, format!("{own}\n"));
        std::fs::remove_file(host.join("ld.so.preload")).expect("removed");
        std::fs::remove_file(&path).expect("removed");
    }
    // A user who can rename the image could lead root elsewhere, also to the running system.
    std::fs::create_dir_all(ground.at("hers/image/etc")).expect("made");
    std::os::unix::fs::symlink("/", ground.at("hers/system")).expect("linked");
    for image in ["hers/image", "hers/system"] {
        for verb in [&["install", "--library", own][..], &["uninstall"]] {
            let mut command = ground.gpulimit(verb);
            let (status, said) = run(command.args(["--dry-run", "--root"]).arg(ground.at(image)));
            assert!(
                status == Some(1) && said.contains("belongs to user 40001"),
                "{said}"
            );
        }
    }
    // Nor does her link to a library of root lead to an image.
    let hers = ground.at("hers/libgpulimit.so");
    std::os::unix::fs::symlink(own, &hers).expect("linked");
    let mut command = ground.gpulimit(&["install", "--dry-run", "--library"]);
    let (status, said) = run(command.arg(&hers).arg("--root").arg(&image));
    assert!(
        status == Some(1) && said.contains("belongs to user 40001"),
        "{said}"
    );
}

#[test]
fn cdi_generate_names_no_file_that_others_can_change() {
    let Some(ground) = Ground::new() else { return };
    let own = library(&ground, "libgpulimit.so");
    let generate = |program: &Path, root: &str, files: &str| {
        let mut command = Command::new(program);
        command
            .args(["cdi", "generate", "--output"])
            .arg(ground.at("cdi/gpulimit.json"))
            .arg("--files")
            .arg(ground.at(files))
            .env_clear()
            .env("GPULIMIT_LIBRARY", &own)
            .env("GPULIMIT_ROOT", ground.at(root));
        run(&mut command)
    };
    let program = Path::new(env!("CARGO_BIN_EXE_gpulimit"));
    let hers = ground.at("hers/gpulimit");
    std::fs::copy(program, &hers).expect("copied");
    std::os::unix::fs::chown(&hers, Some(ALICE), None).expect("given");
    for (program, root, files) in [
        (program, "hers/groups", "files"),
        (&hers, "groups", "files"),
        (program, "groups", "hers/files"),
    ] {
        let (status, said) = generate(program, root, files);
        assert!(
            status == Some(1) && said.contains("belongs to user 40001"),
            "{said}"
        );
        assert!(!ground.at("cdi").exists());
    }
    let (status, said) = generate(program, "groups", "files");
    assert_eq!(status, Some(0), "{said}");
}
