//! The cost of a scrape with many groups. Run by hand, on a build with optimisation:
//! `cargo test --profile fast-build --test serve -- --ignored --nocapture scrape`

use super::rig::{GIB, Rig, Server, charge};
use gpulimit_base::units::Size;
use gpulimit_group::Member;
use std::fs;
use std::time::{Duration, Instant};

/// Returns a figure of `/proc/PID/status` in KiB.
fn kib(server: &Server, key: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with(key)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Returns the processor time of a server in milliseconds.
fn cpu_ms(server: &Server) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", server.child.id())).unwrap();
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    let ticks = |field: &str| field.parse::<u64>().unwrap();
    // Fields 14 and 15 of proc(5), in hundredths of a second.
    10 * (ticks(fields[11]) + ticks(fields[12]))
}

#[test]
#[ignore = "measures"]
fn scrape_of_a_thousand_groups() {
    let number = |name: &str, default: usize| {
        let value = std::env::var(name).ok();
        value.map_or(default, |value| value.parse().unwrap())
    };
    let (groups, each) = (number("GROUPS", 1_000), number("GPUS_EACH", 1));
    // Each group has used its GPUs; this many still have a member.
    let live = number("LIVE", groups);
    let scrapes = number("SCRAPES", 100);
    let rig = Rig::with(&[("GPULIMIT_SIM_GPUS", "8")]);
    let ids: Vec<_> = (0..8).map(|gpu| rig.gpu(gpu)).collect();
    let mut members = Vec::new();
    for number in 0..groups {
        let name = format!("g{number}");
        rig.group(&name, Size::Bytes(4 * GIB));
        let member = Member::join(rig.world.root(), &name).expect("joined");
        for at in 0..each {
            let device = member.device(ids[(number + at) % 8], 80 * GIB).unwrap();
            charge(&device, GIB);
        }
        if number < live {
            members.push(member);
        }
    }
    let server = rig.tcp(&["--public"]);
    let server_private = rig.unix(&[]);
    for (name, server) in [("public", &server), ("private", &server_private)] {
        let mut times = Vec::new();
        let mut bytes = 0;
        let cpu = cpu_ms(server);
        for scrape in 0..scrapes {
            // A reading is shared for half a second.
            std::thread::sleep(Duration::from_millis(number("PAUSE_MS", 510) as u64));
            let start = Instant::now();
            bytes = server.place.metrics().len();
            times.push(start.elapsed());
            if scrape == 9 {
                println!("{name}: after 10: {} KiB", kib(server, "VmRSS"));
            }
        }
        times.sort();
        println!(
            "{name}: {groups} groups, {each} GPUs each: {bytes} bytes, best {:?}, median {:?}, \
             worst {:?}, CPU {} ms each, RSS {} KiB, peak {} KiB",
            times[0],
            times[times.len() / 2],
            times[times.len() - 1],
            (cpu_ms(server) - cpu) / scrapes as u64,
            kib(server, "VmRSS"),
            kib(server, "VmHWM"),
        );
    }
}
