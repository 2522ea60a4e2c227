//! How `libgpulimit.so` is linked.
//!
//! It is loaded into every program of a session, so what the dynamic linker has to do for it
//! counts.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(frame_pointers)");
    let flags = std::env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    if flags.contains("force-frame-pointers=yes") {
        println!("cargo::rustc-cfg=frame_pointers");
    } else {
        println!(
            "cargo::warning=RUSTFLAGS lacks -Cforce-frame-pointers=yes: \
             the library may not notice that a program jumped out of a hooked call (siglongjmp)"
        );
    }
    // The table refers to our own functions, whatever else exports their names; and they are not
    // looked up by name.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // Every loader that we run with knows the newer of the two tables of names, and asks no other.
    println!("cargo::rustc-cdylib-link-arg=-Wl,--hash-style=gnu");
    // The symbols of other libraries may lead to ours (entry/door/front.rs), so it stays where it
    // is.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // The unwinder from the archive, so that no second library (libgcc_s, 0.1 ms) is loaded with
    // us.
    if let Some(folder) = archive("libgcc_eh.a").as_deref().and_then(Path::parent) {
        println!("cargo::rustc-link-search=native={}", folder.display());
        println!("cargo::rustc-link-lib=static:-bundle=gcc_eh");
        // What backtrace.rs takes the place of is in one object with the rest. The first one
        // counts, which is ours.
        println!("cargo::rustc-cdylib-link-arg=-Wl,--allow-multiple-definition");
    }
}

/// Where the system's compiler keeps an archive of its own; `None` when it has none, or does not
/// link this build.
fn archive(name: &str) -> Option<PathBuf> {
    // Another linker (zig, a cross compiler) has its own ways.
    if std::env::var_os("RUSTC_LINKER").is_some() {
        return None;
    }
    let asked = Command::new("cc")
        .arg(format!("-print-file-name={name}"))
        .output()
        .ok()?;
    let path = PathBuf::from(String::from_utf8(asked.stdout).ok()?.trim());
    // A compiler that has none repeats the name.
    path.is_absolute().then_some(path)
}
