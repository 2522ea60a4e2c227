//! Sets how `libgpulimit.so` is linked.
//!
//! The library is loaded into every program of a session, so the work of the dynamic linker counts.

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
    // References to the library's own functions are bound at link time: no other library's symbols
    // of the same names can take their place, and the dynamic linker does not look them up.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // Every supported dynamic linker knows the GNU hash table of symbols and needs no other.
    println!("cargo::rustc-cdylib-link-arg=-Wl,--hash-style=gnu");
    // Symbols of other libraries may lead to this one (entry/door/front.rs), so it is never
    // unloaded.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // Links the unwinder statically, so that libgcc_s is not loaded with the library (0.1 ms).
    if let Some(folder) = archive("libgcc_eh.a").as_deref().and_then(Path::parent) {
        println!("cargo::rustc-link-search=native={}", folder.display());
        println!("cargo::rustc-link-lib=static:-bundle=gcc_eh");
        // backtrace.rs defines functions that the unwinder's object file also defines. The linker
        // takes the first definition, the one in backtrace.rs.
        println!("cargo::rustc-cdylib-link-arg=-Wl,--allow-multiple-definition");
    }
}

/// Returns the path of an archive of the system's C compiler; `None` when the compiler has no such
/// archive or does not link this build.
fn archive(name: &str) -> Option<PathBuf> {
    // Another linker (zig, a cross compiler) finds its own archives.
    if std::env::var_os("RUSTC_LINKER").is_some() {
        return None;
    }
    let asked = Command::new("cc")
        .arg(format!("-print-file-name={name}"))
        .output()
        .ok()?;
    let path = PathBuf::from(String::from_utf8(asked.stdout).ok()?.trim());
    // A compiler without the archive repeats its name.
    path.is_absolute().then_some(path)
}
