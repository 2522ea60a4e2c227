//! What `ps` says that processes do on a GPU.

use gpulimit_programs::world::{self, MIB, World, text};
use serde_json::Value;

const CAP: u64 = 4096 * MIB;

fn controller(world: &World, arguments: &[&str]) -> String {
    let mut command = world.bare(&world::controller());
    command
        .args(arguments)
        .env("GPULIMIT_LIBRARY", world::shim());
    let output = world::finish(command);
    assert!(output.status.success(), "{output:?}");
    text(&output.stdout)
}

fn processes(world: &World) -> Vec<Value> {
    let said: Value = serde_json::from_str(&controller(world, &["ps", "--json"])).expect("JSON");
    said["processes"].as_array().expect("a list").clone()
}

#[test]
fn processes_have_their_share_of_the_gpu_and_their_last_use() {
    let world = World::new(CAP);
    world.machine().knob("busy", "80");
    let programs = [world.on_gpu(), world.on_gpu()];
    // Both have charged memory in the last five minutes, which the ledger notes.
    for (busy, share) in [("80", 40), ("0", 0)] {
        world.machine().knob("busy", busy);
        let listed = processes(&world);
        assert_eq!(listed.len(), programs.len(), "{listed:?}");
        for process in listed {
            assert_eq!(process["busy"], share, "{process}");
            assert!(process["host"].as_u64() > Some(MIB), "{process}");
            // The ledger notes seconds.
            let second = |key: &str| process[key].as_str().map(|time| time[..19].to_owned());
            let (started, used) = (second("started"), second("last_use"));
            assert!(started.is_some() && started <= used, "{process}");
        }
    }
    // Without samples the ledger alone does not tell when the processors were used.
    world
        .machine()
        .knob("fail", "nvmlDeviceGetProcessUtilization:3");
    for process in processes(&world) {
        assert!(
            process["busy"].is_null() && process["last_use"].is_null(),
            "{process}"
        );
    }
    // Scripts read the table: figures that change all the time are for terminals.
    let table = controller(&world, &["ps"]);
    assert!(
        table.contains("TOTAL") && !table.contains("BUSY"),
        "{table}"
    );
    for program in programs {
        program.end_quietly();
    }
}
