//! NVIDIA's own driver libraries, examined without a GPU: every name leads to its hook or to the
//! driver.

use std::path::Path;
use std::process::Command;

use gpulimit_programs::world::{self, MIB, Session, World, text};
use gpulimit_support::{side_by_side, skip};

/// Returns the names that a library exports and that begin with `prefix`.
fn exports(library: &Path, prefix: &str) -> Vec<String> {
    let names = Command::new("nm")
        .args(["-D", "--defined-only", "--format=posix"])
        .arg(library)
        .output()
        .expect("nm");
    text(&names.stdout)
        .lines()
        .filter_map(|line| line.split([' ', '@']).next())
        .filter(|name| name.starts_with(prefix))
        .map(str::to_owned)
        .collect()
}

fn doors(folder: &Path, names: &[String]) -> Vec<String> {
    let driver = folder.join("libcuda.so.1").display().to_string();
    let list: String = names.iter().map(|name| format!("NAME({name})")).collect();
    let arguments = [&format!("-DNAMES={list}"), "-Wl,--no-as-needed", &driver];
    let linked = world::library("linked", &arguments);
    let asks = world::library("asks", &[]);
    let mut doors: Vec<String> = ["dlsym", "soname-so", "absolute", "deepbind", "default"]
        .map(str::to_owned)
        .to_vec();
    for library in [&linked, &asks] {
        doors.push(format!("linked:{}", library.display()));
        doors.push(format!("linked-deepbind:{}", library.display()));
    }
    let arguments = ["-DNEXT", "-Wl,--no-as-needed", &driver];
    let next = world::library("asks", &arguments);
    doors.push(format!("linked:{}", next.display()));
    let exported = |name: &str| names.iter().any(|exported| exported == name);
    for (function, number, versions) in [
        ("cuGetProcAddress", 1, &[11030, 11080, 12000][..]),
        ("cuGetProcAddress_v2", 2, &[11000, 12000, 12040, 13000]),
    ] {
        if exported(function) {
            doors.extend(
                versions
                    .iter()
                    .map(|cuda| format!("getproc{number}:{cuda}")),
            );
        }
    }
    doors
}

#[test]
fn every_name_of_a_real_driver_leads_to_its_hook_or_to_the_driver() {
    let drivers = world::real_drivers();
    if drivers.is_empty() {
        skip("there are no driver libraries here (scripts/drivers)");
    }
    for (version, folder) in drivers {
        let cuda = exports(&folder.join("libcuda.so.1"), "cu");
        let nvml = exports(&folder.join("libnvidia-ml.so.1"), "nvml");
        assert!(cuda.len() > 350 && nvml.len() > 150, "{version}");
        let world = World::new(1024 * MIB);
        let list = world.file("names");
        std::fs::write(&list, cuda.join("\n") + "\n" + &nvml.join("\n")).expect("a list");
        side_by_side(doors(&folder, &cuda), |door| {
            let mut command = world.limited(world::program());
            command
                .env("LD_LIBRARY_PATH", &folder)
                .args(["--door", &door]);
            let mut program = Session::start(command);
            let answer = program.say("hooks");
            let (hooked, missed) = answer.split_once(' ').unwrap_or((&answer, ""));
            assert_eq!(missed, "", "{version}, {door} finds these unhooked");
            // Driver 450 has neither VMM imports nor newer contexts, and the test asks for CUDA
            // 11.0 without pools.
            assert!(
                hooked.parse::<u32>().expect("a count") >= 40,
                "{version}, {door}: {hooked}"
            );
            let answer = program.say(&format!("names {}", list.display()));
            let (found, astray) = answer.split_once(' ').unwrap_or((&answer, ""));
            assert_eq!(astray, "", "{version}, {door} finds wrong functions");
            assert!(
                found.parse::<usize>().expect("a count") > 300,
                "{version}, {door}: {found}"
            );
            program.end_quietly();
        });
    }
}
